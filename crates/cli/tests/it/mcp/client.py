"""Drives the built `stockade mcp` with the official Python client. One scenario a run; what is not as it
should be is an exception, and the exit code says so."""

import base64
import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import httpx2
from mcp import Client, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

SOON = 30
"""How long anybody waits for something that should happen soon."""

TOOLS = {
    "bash", "read_file", "write_file", "edit_file", "apply_patch", "glob", "grep", "list_dir",
    "artifacts", "screenshot", "browser", "sandbox_create", "sandbox_list", "sandbox_use",
    "sandbox_destroy", "workspace_diff", "workspace_apply",
}  # fmt: skip


class Server:
    """How the server is started, and how a client reaches it."""

    def __init__(self, program, transport, mode):
        self.program, self.transport, self.mode = program, transport, mode

    @contextlib.asynccontextmanager
    async def client(self, *flags, **options):
        """One client of a server of its own."""
        if self.transport == "stdio":
            start = StdioServerParameters(
                command=self.program, args=["mcp", *flags], env=dict(os.environ), cwd=os.getcwd()
            )
            async with Client(start, mode=self.mode, **options) as client:
                yield client
            return
        with self.listening(*flags) as (url, token):
            async with self.connected(url, token, **options) as client:
                yield client

    @contextlib.asynccontextmanager
    async def connected(self, url, token, **options):
        """One client of a server that listens."""
        carrier = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
        async with carrier, Client(
            streamable_http_client(url, http_client=carrier), mode=self.mode, **options
        ) as client:
            yield client

    @contextlib.contextmanager
    def listening(self, *flags):
        """A server on HTTP, which ends by a signal."""
        command = [self.program, "--json", "mcp", "--http", *flags]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            door = json.loads(server.stdout.readline())
            yield door["url"], door["token"]
        finally:
            server.terminate()
            assert server.wait(SOON) == 143, server.returncode


async def call(client, tool, **arguments):
    """What a tool answers, which must be no error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.content[0].type == "text", result.content
    return result.structured_content


async def refused(client, tool, **arguments):
    """Why a tool does not do what it is asked."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    assert result.structured_content["code"], result
    return result.content[0].text


async def bash(client, line, **more):
    """What a shell line prints, which must end well."""
    done = await call(client, "bash", command=line, **more)
    assert done["exitCode"] == 0, done
    return done["stdout"]


async def eventually(look):
    """Looks until there is something to see."""
    with anyio.fail_after(SOON):
        while True:
            seen = await look()
            if seen:
                return seen
            await anyio.sleep(0.02)


async def everyday(server):
    """A working day: a sandbox, a build, an edit, a program in the background."""
    async with server.client() as client:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == TOOLS, listed
        for tool in listed:
            assert tool.description and tool.title and tool.annotations, tool
            assert tool.input_schema["type"] == "object", tool
        assert client.server_info.name == "stockade", client.server_info
        assert "sandbox" in client.instructions

        made = await call(client, "sandbox_create")
        room = {"sandbox_id": made["sandboxId"]}
        source = '#include <stdio.h>\nint main(void) { puts("Hello, wrold"); }\n'
        await call(client, "write_file", path="src/hello.c", content=source, **room)
        build = "cc -o hello src/hello.c && ./hello"
        assert await bash(client, build, **room) == "Hello, wrold\n"
        await call(
            client, "edit_file", path="src/hello.c", old_string="wrold", new_string="world", **room
        )
        assert await bash(client, build, **room) == "Hello, world\n"
        assert "world" in Path("src/hello.c").read_text()
        read = await call(client, "read_file", path="src/hello.c", **room)
        assert "world" in json.dumps(read), read
        found = await call(client, "grep", pattern="w[o]rld", **room)
        assert "src/hello.c" in json.dumps(found), found
        found = await call(client, "glob", pattern="**/*.c", **room)
        assert "src/hello.c" in json.dumps(found), found

        # A program in the background, followed from where one stopped reading.
        line = "echo first; read word; echo got $word"
        job = (await call(client, "bash", action="start", command=line, **room))["jobId"]
        offset, seen = 0, ""

        async def follow(text):
            nonlocal offset, seen
            logs = await call(
                client, "bash", action="logs", job_id=job, offset=offset, wait_ms=5000, **room
            )
            offset, seen = logs["nextOffset"], seen + logs["data"]
            return text in seen

        await eventually(lambda: follow("first\n"))
        await call(client, "bash", action="write", job_id=job, input="it\n", **room)
        await eventually(lambda: follow("got it\n"))
        assert seen == "first\ngot it\n", seen

        # Without an id there is the sandbox that was bound, another one over the same files.
        done = await call(client, "bash", command="./hello; exit 3")
        assert (done["stdout"], done["exitCode"]) == ("Hello, world\n", 3), done
        assert done["executionEnvironment"] == "sandbox", done
        assert done["sandboxSessionId"] != made["sandboxId"], done
        await call(client, "sandbox_destroy", **room)
        text = await refused(client, "bash", command="true", **room)
        assert made["sandboxId"] in text, text

        try:
            await client.call_tool("no_such_tool", {})
        except Exception as error:
            assert "no_such_tool" in str(error), error
        else:
            raise AssertionError("an unknown tool was called")
        text = await refused(client, "bash", command="true", sandbox="x")
        assert "sandbox" in text, text


async def transaction(server):
    """Changes stay apart until they are applied, and a person says so."""
    Path("kept.txt").write_text("old\n")
    questions = []

    async def person(context, params):
        questions.append(params.message)
        return types.ElicitResult(action="accept", content={"allow": True})

    async with server.client("--overlay", elicitation_callback=person) as client:
        await call(client, "write_file", path="kept.txt", content="new\n")
        await call(client, "write_file", path=".git/hooks/post-checkout", content="#!/bin/sh\n")
        assert await bash(client, "cat kept.txt; echo made > made.txt") == "new\n"
        assert Path("kept.txt").read_text() == "old\n"
        assert not Path("made.txt").exists()
        diff = await call(client, "workspace_diff", patch=True)
        assert "-old\n+new\n" in diff["patch"], diff
        for path in ("kept.txt", "made.txt", "post-checkout"):
            assert path in json.dumps(diff), diff

        job = (await call(client, "bash", action="start", command="sleep 98765"))["jobId"]
        assert job in await refused(client, "workspace_apply")
        await call(client, "bash", action="stop", job_id=job)
        done = await call(client, "workspace_apply")
        assert "kept.txt" in questions[0], questions
        assert ".git/hooks/post-checkout" in done["held"], done
        assert Path("kept.txt").read_text() == "new\n"
        assert Path("made.txt").read_text() == "made\n"
        assert not Path(".git/hooks/post-checkout").exists()

        # And on: what comes now is compared with what was applied.
        assert await bash(client, "cat kept.txt; echo newer > kept.txt") == "new\n"
        changes = (await call(client, "workspace_diff"))["changes"]
        assert [change["path"] for change in changes] == ["kept.txt"], changes
        Path("kept.txt").write_text("meanwhile\n")
        assert "kept.txt" in await refused(client, "workspace_apply")
        assert Path("kept.txt").read_text() == "meanwhile\n"

    async with server.client("--overlay") as client:
        await bash(client, "echo unasked > unasked.txt")
        assert "[approval]" in await refused(client, "workspace_apply")
        assert not Path("unasked.txt").exists()


async def five(server):
    """Five sandboxes at once over one directory, each with changes of its own."""
    Path("common.txt").write_text("common\n")
    diffs = {}

    async def work(client, number):
        room = {"sandbox_id": (await call(client, "sandbox_create"))["sandboxId"]}
        line = f"cat common.txt; echo {number} > common.txt; echo > only{number}"
        assert await bash(client, line, **room) == "common\n"
        changes = (await call(client, "workspace_diff", **room))["changes"]
        diffs[number] = {change["path"] for change in changes}

    async with server.client("--overlay") as client, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(work, client, number)
    assert diffs == {number: {"common.txt", f"only{number}"} for number in range(5)}, diffs
    assert sorted(os.listdir()) == ["common.txt"]
    assert Path("common.txt").read_text() == "common\n"


async def cancelled(server):
    """A call that is given up is killed, and others go on."""
    async with server.client() as client:
        await bash(client, "true")

        async def running():
            jobs = (await call(client, "bash", action="list"))["jobs"]
            return [job for job in jobs if job["state"] == "running"]

        async with anyio.create_task_group() as tasks:
            given_up = await tasks.start(endless, client)
            await eventually(running)
            given_up.cancel()

        async def nothing():
            return not await running()

        await eventually(nothing)
        assert await bash(client, "pgrep -x sleep || echo gone") == "gone\n"


async def endless(client, task_status=anyio.TASK_STATUS_IGNORED):
    with anyio.CancelScope() as scope:
        task_status.started(scope)
        await client.call_tool("bash", {"command": "sleep 98765 & wait"})


async def asked(server):
    """Without walls a person is asked, and only a yes is a yes."""
    questions, answers = [], []

    async def person(context, params):
        questions.append(params.message)
        return answers.pop(0)

    def answer(action, **content):
        return types.ElicitResult(action=action, content=content or None)

    async with server.client("--local", elicitation_callback=person) as client:
        answers.append(answer("accept", allow=True))
        done = await call(client, "bash", command="touch asked.txt; echo $PPID")
        assert done["executionEnvironment"] == "local", done
        assert Path("asked.txt").exists()
        assert "touch asked.txt" in questions[0], questions
        for said in (answer("accept", allow=False), answer("decline"), answer("cancel")):
            answers.append(said)
            text = await refused(client, "bash", command="touch never.txt")
            assert "[approval]" in text, text
    assert len(questions) == 4, questions
    async with server.client("--local") as client:
        text = await refused(client, "bash", command="touch never.txt")
        assert "[approval]" in text, text
    assert not Path("never.txt").exists()


SITE_NAME = "pages.test"
"""The host of the site that STOCKADE_TEST_SITE has the port of."""


def site_fetch():
    """A shell line that prints the page of the site, or that there is none, and the flags with which it is asked about."""
    port = os.environ["STOCKADE_TEST_SITE"]
    program = f"""
import urllib.request as u
try: print(u.urlopen("http://{SITE_NAME}:{port}/", timeout=100).read().decode())
except OSError: print("failed")
"""
    return f"/usr/bin/python3 -c '{program}'", ("--net", f"ask,127.0.0.1:{port}")


async def hosts(server):
    """A host that no rule names is asked about while the program waits, and reached as the person says."""
    questions, answers = [], []

    async def person(context, params):
        questions.append(params)
        return answers.pop(0)

    def accept(**content):
        return types.ElicitResult(action="accept", content=content)

    line, flags = site_fetch()
    port = os.environ["STOCKADE_TEST_SITE"]
    async with server.client(*flags, elicitation_callback=person) as client:
        # Each is for one connection, until the last one.
        for said, seen in [
            (accept(allow=True), "hello"),
            (types.ElicitResult(action="cancel"), "failed"),
            (accept(allow=True, forThisSandbox=True), "hello"),
        ]:
            answers.append(said)
            assert await bash(client, line) == f"{seen}\n", said
        assert await bash(client, line) == "hello\n"
        assert len(questions) == 3, questions
        for question in questions:
            assert f"`{SITE_NAME}:{port}`" in question.message, question
            fields = question.requested_schema["properties"]
            assert set(fields) == {"allow", "forThisSandbox"}, question
    # A no is for good, however it is said.
    for said in (types.ElicitResult(action="decline"), accept(allow=False)):
        questions.clear()
        answers.append(said)
        async with server.client(*flags, elicitation_callback=person) as client:
            for _ in range(2):
                done = await call(client, "bash", command=line)
                assert done["stdout"] == "failed\n", done
                [denied] = done["networkDenied"]
                assert denied["host"] == SITE_NAME, denied
            assert len(questions) == 1, questions


async def unasked_hosts(server):
    """Where no person can be asked while a command runs, a host that no rule names is denied, and that is told."""
    questions = []

    async def person(context, params):
        questions.append(params)
        return types.ElicitResult(action="accept", content={"allow": True})

    line, flags = site_fetch()
    async with server.client(*flags, elicitation_callback=person) as client:
        done = await call(client, "bash", command=line)
        assert done["stdout"] == "failed\n", done
        [denied] = done["networkDenied"]
        assert denied["host"] == SITE_NAME and "client" in denied["reason"], denied
    assert not questions, questions


async def pooled(server):
    """An address that was invented in one sandbox is dead in the next one that a pool gives."""
    port = os.environ["STOCKADE_TEST_SITE"]
    other = "other.test"
    flags = ("--net", f"{SITE_NAME}:{port},{other}:{port},127.0.0.1:{port}")

    def look_up(name):
        return f"/usr/bin/python3 -c 'import socket; print(socket.gethostbyname(\"{name}\"))'"

    def connect(address):
        return f"exec 3<>/dev/tcp/{address}/{port}"

    async def ready():
        boxes = subprocess.run(
            [server.program, "--json", "ps"], stdout=subprocess.PIPE, check=True
        ).stdout
        return [box["sandbox"] for box in json.loads(boxes)["sandboxes"] if box["state"] == "ready"]

    async with server.client(*flags) as client:
        seen = set()
        for _ in range(3):
            kept = await eventually(ready)
            made = (await call(client, "sandbox_create"))["sandboxId"]
            assert made in kept, (made, kept)
            room = {"sandbox_id": made}
            # First of all names: were addresses given from the same one on, this would be the earlier one.
            first = (await bash(client, look_up(other), **room)).strip()
            for old in seen:
                done = await call(client, "bash", command=connect(old), **room)
                assert done["exitCode"] != 0, (old, done)
            own = (await bash(client, look_up(SITE_NAME), **room)).strip()
            assert not {first, own} & seen, (first, own, seen)
            await bash(client, connect(own), **room)
            seen.add(own)
            await call(client, "sandbox_destroy", **room)


async def allowed(server):
    """What a rule of the user's allows is not asked about."""
    async with server.client("--local") as client:
        done = await call(client, "bash", command="echo by rule")
        assert (done["stdout"], done["executionEnvironment"]) == ("by rule\n", "local"), done


async def told(server):
    """Who asks for progress is told how a long command goes."""
    heard = []

    async def listen(progress, total, message):
        heard.append((progress, message))
        if len(heard) == 2:
            Path("enough").touch()

    async with server.client() as client:
        line = "echo working; until [ -e enough ]; do sleep 0.1; done"
        done = await client.call_tool("bash", {"command": line}, progress_callback=listen)
        assert done.structured_content["exitCode"] == 0, done
    assert len(heard) >= 2 and heard[0][0] < heard[1][0], heard
    assert any("working" in (message or "") for _, message in heard), heard


async def picture(server):
    """A page that the sandbox serves, as a person would see it."""
    page = "<body style='margin:0;background:#c00'><h1>Stockade</h1></body>"
    Path("index.html").write_text(page)
    flags = ("--net", "loopback", "--mem", "2g", "--pids", "512")
    async with server.client(*flags) as client:
        text = await refused(client, "screenshot", url="http://127.0.0.1:8000/")
        assert "nothing listens at http://127.0.0.1:8000/" in text, text
        line = "python3 -m http.server 8000 --bind 127.0.0.1"
        await call(client, "bash", action="start", command=line)
        up = "exec 3<>/dev/tcp/127.0.0.1/8000"

        async def answers():
            return (await call(client, "bash", command=up))["exitCode"] == 0

        await eventually(answers)
        arguments = {"url": "http://127.0.0.1:8000/", "width": 640, "height": 480}
        shown = await client.call_tool("screenshot", arguments)
        assert not shown.is_error, shown.content
        [image] = [block for block in shown.content if block.type == "image"]
        assert image.mime_type == "image/png", image.mime_type
        data = base64.b64decode(image.data)
        Path("picture.png").write_bytes(data)
        assert corner(data) == ((640, 480), (0xCC, 0, 0)), corner(data)
        text = await refused(client, "screenshot", url="http://example.org/")
        assert "example.org" in text, text
        text = await refused(client, "screenshot", url="file:///etc/passwd")
        assert "/etc/passwd" in text, text


FORM = """
<title>Form</title><body style='margin:0;background:#0c0'>
<form onsubmit="document.title = 'sent'; said.innerText = name.value + ' in ' + town.value; return false">
  <label>Name <input id=name value=nobody></label>
  <select id=town><option value=b>Berlin</option><option value=p>Paris</option></select>
  <button onclick="alert('are you sure?')">Send</button> <p id=said></p>
</form><a href=second.html>on</a> <a href=second.html target=_blank>apart</a>
<ul><li onclick="0">%s&#128512; and more</li></ul>
""" % ("x" * 99)


async def page(server):
    """A page that is used: a form, a dialog, a link, what goes wrong, and nothing left at the end."""
    Path("form.html").write_text(FORM)
    Path("second.html").write_text("<title>Second</title><p>You are there.</p>")
    async with server.client("--mem", "2g", "--pids", "512") as client:
        use = functools.partial(call, client, "browser")
        text = await refused(client, "browser", action="text")
        assert "no page is open" in text, text
        text = await refused(client, "browser", action="open", url="http://localhost:8000/")
        assert "nothing listens at http://localhost:8000/" in text, text
        shown = await use(action="open", url="form.html", width=640, height=480)
        assert shown["title"] == "Form" and shown["url"].startswith("file://"), shown
        elements = {one["selector"]: one for one in shown["elements"]}
        assert elements["#name"]["label"] == "Name", elements
        assert elements["#name"]["value"] == "nobody", elements
        # Cut in the middle of a character, and with a value that is no text.
        assert any(one["kind"] == "li" for one in elements.values()), elements

        await use(action="type", selector="#name", text="Ada 'ä' <b>")
        await use(action="type", selector="#town", text="Paris")
        [send] = [at for at, one in elements.items() if one["label"] == "Send"]
        shown = await use(action="click", selector=send)
        assert (shown["title"], shown["notes"]) == (
            "sent", ["the page showed a dialog (alert): are you sure?"],
        ), shown  # fmt: skip
        assert "Ada 'ä' <b> in p" in shown["text"], shown
        part = await use(action="text", selector="#said")
        assert part["text"] == "Ada 'ä' <b> in p", part
        shown = await use(action="type", selector="#name", text="", submit=True)
        assert "Ada" not in shown["text"], shown

        seen = await client.call_tool("browser", {"action": "screenshot"})
        assert not seen.is_error, seen.content
        [image] = [block for block in seen.content if block.type == "image"]
        data = base64.b64decode(image.data)
        assert corner(data) == ((640, 480), (0, 0xCC, 0)), corner(data)

        text = await refused(client, "browser", action="click", selector="#nothing")
        assert "names no element" in text, text
        text = await refused(client, "browser", action="click", selector="a[")
        assert "is not a CSS selector" in text, text
        text = await refused(client, "browser", action="open", url="file:///etc/passwd")
        assert "/etc/passwd" in text, text
        shown = await use(action="click", selector="a[target]")
        assert any("another window" in note for note in shown["notes"]), shown
        await use(action="click", selector="a")

        async def there():
            return "You are there." in (await use(action="text"))["text"]

        await eventually(there)
        await use(action="close")
        text = await refused(client, "browser", action="screenshot")
        assert "no page is open" in text, text
        left = await bash(client, "ls -d /tmp/stockade-browser-* 2>/dev/null | wc -l")
        assert left == "0\n", left


def corner(png):
    """The size of a picture, and the colour at its lower right."""
    import struct
    import zlib

    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        chunk = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", chunk[:10])
            assert depth == 8 and colours in (2, 6), (depth, colours)
            pixel = 3 if colours == 2 else 4
        elif kind == b"IDAT":
            packed += chunk
        at += length + 12
    lines, stride = zlib.decompress(packed), width * pixel
    above = bytearray(stride)
    for row in range(height):
        start = row * (stride + 1)
        filtering, line = lines[start], bytearray(lines[start + 1 : start + 1 + stride])
        for i in range(stride):
            left = line[i - pixel] if i >= pixel else 0
            corner_byte = above[i - pixel] if i >= pixel else 0
            line[i] = (line[i] + guess(filtering, left, above[i], corner_byte)) & 0xFF
        above = line
    return (width, height), tuple(above[-pixel:][:3])


def guess(filtering, left, up, both):
    """What a filter of the PNG format takes a byte for."""
    if filtering == 4:
        far = [abs(left + up - both - side) for side in (left, up, both)]
        return (left, up, both)[far.index(min(far))]
    return (0, left, up, (left + up) // 2)[filtering]


async def apart(server):
    """Clients with sessions share nothing; what a session made is gone with it."""
    with server.listening() as (url, token):
        async with server.connected(url, token) as one:
            made = (await call(one, "sandbox_create"))["sandboxId"]
            async with server.connected(url, token) as other:
                listed = (await call(other, "sandbox_list"))["sandboxes"]
                seen = [box["sandboxId"] for box in listed]
                assert (made in seen) == (server.mode != "legacy"), (made, seen)
            await bash(one, "true", sandbox_id=made)


async def guarded(server):
    """Who gets in."""
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "0"},
        },
    }  # fmt: skip
    with server.listening() as (url, token):
        key = {"Authorization": f"Bearer {token}"}
        both = {"Accept": "application/json, text/event-stream"}

        def post(headers, at=url, body=hello):
            return httpx2.post(at, json=body, headers={**both, **headers}, timeout=60)

        assert post({}).status_code == 401
        assert post({"Authorization": "Bearer " + "0" * 64}).status_code == 401
        assert post({}).headers["www-authenticate"] == "Bearer"
        assert post(key, at=url + "/x").status_code == 404
        assert post({**key, "Host": "evil.example"}).status_code == 403
        assert post({**key, "Origin": "http://evil.example"}).status_code == 403
        assert post({**key, "Origin": "null"}).status_code == 403
        assert post(key, body={**hello, "x": "x" * (5 << 20)}).status_code == 413
        # Sixteen sessions, and no more until one has ended.
        begun = [post(key) for _ in range(16)]
        assert all("stockade" in answer.text for answer in begun), begun
        assert "as many sessions" in post(key).text
        session = {"Mcp-Session-Id": begun[0].headers["mcp-session-id"]}
        assert httpx2.delete(url, headers={**key, **session}, timeout=60).is_success

        async def free():
            return "stockade" in post(key).text

        await eventually(free)


async def idle(server):
    """A session that nobody uses ends, with its sandboxes."""
    state = Path(os.environ["STOCKADE_STATE_DIR"])

    def leases():
        return [one.name for one in (state / "leases").iterdir() if one.name != "lock"]

    with server.listening("--idle", "3s") as (url, token):
        async with server.connected(url, token) as client:
            await bash(client, "true")
            assert leases()

            async def cleared():
                return not leases()

            await eventually(cleared)


SCENARIOS = [
    everyday, transaction, five, cancelled, asked, hosts, unasked_hosts, pooled, allowed, told,
    picture, page, apart, guarded, idle,
]  # fmt: skip

if __name__ == "__main__":
    wanted, program, transport, mode = sys.argv[1:]
    [scenario] = [one for one in SCENARIOS if one.__name__ == wanted]
    anyio.run(scenario, Server(program, transport, mode))
