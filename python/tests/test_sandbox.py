"""Sandboxes, executions, files and snapshots, on a real daemon."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from stockade import Client, Exit, Gap, Output, Sandbox, StockadeError


def test_a_command_has_output_and_an_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("out\n", "err\n", 3, False)
    assert sandbox.run(["printf", "%s", "$HOME *"]).stdout == "$HOME *"


def test_a_command_takes_input_environment_and_directory(sandbox: Sandbox) -> None:
    assert sandbox.run("cat; echo $A; pwd", input="in\n", env={"A": "b"}, cwd="/tmp").stdout == "in\nb\n/tmp\n"
    assert sandbox.run("wc -c", input=b"").stdout == "0\n"
    assert sandbox.run("wc -c", input=b"\xff" * (3 << 20)).stdout == f"{3 << 20}\n"


def test_how_it_ended_is_told_apart(sandbox: Sandbox) -> None:
    assert sandbox.run("sleep 60", timeout=0.2).timed_out
    killed = sandbox.run("kill -9 $$").outcome
    assert (killed.ending, killed.signal, killed.exit_code, killed.shell_code) == ("signalled", "SIGKILL", -1, 137)
    missing = sandbox.run(["no-such-program"]).outcome
    assert (missing.ending, missing.start_failure, missing.shell_code) == ("start-failed", "not-found", 127)
    assert sandbox.run(["/etc/passwd"]).outcome.shell_code == 126
    assert sandbox.run("head -c 2000 /dev/zero", max_output="1k").truncated


def test_output_comes_byte_for_byte(sandbox: Sandbox) -> None:
    every = bytes(range(256)) * 8 + "\u2028\x85\r\nä".encode()
    sandbox.files.write("every", every)
    assert sandbox.run("cat every").stdout_bytes == every


def test_output_streams_while_the_program_runs(sandbox: Sandbox) -> None:
    execution = sandbox.start("read line; echo got $line; read line; echo last $line", stdin=True)
    execution.write("one\n")
    events = iter(execution)
    first = next(events)
    assert isinstance(first, Output) and first.text == "got one\n"
    execution.write("two\n", end=True)
    *output, last = events
    assert b"".join(event.data for event in output if isinstance(event, Output)) == b"last two\n"
    assert isinstance(last, Exit) and last.outcome.exit_code == 0
    # From any number on, and as often as it is asked for.
    assert list(execution.events(start=last.seq)) == [last]
    assert execution.wait().stdout == "got one\nlast two\n"


def test_a_signal_and_a_cancel_end_a_program(sandbox: Sandbox) -> None:
    execution = sandbox.start("trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    events = iter(execution)
    assert next(events).text == "ready\n"
    execution.signal("TERM")
    assert execution.wait().exit_code == 5
    endless = sandbox.start("sleep 1000")
    assert endless.outcome() is None
    endless.cancel()
    endless.cancel()
    assert endless.wait().outcome.ending == "cancelled"


def test_a_terminal_has_a_size(sandbox: Sandbox) -> None:
    execution = sandbox.start("stty size; read line; stty size", stdin=True, terminal=(11, 22))
    events = iter(execution)
    assert next(events).text.strip() == "11 22"
    execution.resize(33, 44)
    execution.write("\n")
    assert "33 44" in execution.wait().stdout


class CuttingProxy:
    """Passes connections on to the daemon, and cuts each after some bytes of answers: twice as many as the one before."""

    def __init__(self, daemon: str, path: str, cut_after: int) -> None:
        self.daemon, self.cut_after, self.cuts = daemon, cut_after, 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.daemon)
            threading.Thread(target=self.pass_on, args=(far, near, self.cut_after), daemon=True).start()
            self.cut_after *= 2
            threading.Thread(target=self.pass_on, args=(near, far, None), daemon=True).start()

    def pass_on(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        try:
            while left is None or left > 0:
                piece = source.recv(65536 if left is None else min(left, 65536))
                if not piece:
                    break
                target.sendall(piece)
                left = None if left is None else left - len(piece)
            else:
                self.cuts += 1
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_a_lost_connection_is_taken_up_again(client: Client, daemon: str, tmp_path) -> None:
    """Also within the answer to a create or a start: by its key the work is done once."""
    proxy = CuttingProxy(daemon, str(tmp_path / "proxy.sock"), cut_after=500)
    lines = "".join(f"line {number}\n" for number in range(9999))
    with Sandbox(host=f"unix:{tmp_path}/proxy.sock") as sandbox:
        result = sandbox.run("i=0; while [ $i -lt 9999 ]; do echo line $i; i=$((i+1)); done; exit 4")
    proxy.close()
    assert (result.stdout, result.exit_code, result.missed) == (lines, 4, 0)
    assert proxy.cuts > 5


def test_a_program_outlives_its_client(client: Client, sandbox: Sandbox, daemon: str) -> None:
    execution = sandbox.start("read line; echo $line", stdin=True)
    with Client(host=f"unix:{daemon}") as other:
        again = other.execution(execution.id)
        again.write("still here\n", end=True)
        assert again.wait().stdout == "still here\n"
    with Sandbox.attach(sandbox.id, client=client) as attached:
        assert attached.run("echo same").stdout == "same\n"
    assert sandbox.state() == "running"


def test_a_run_that_is_interrupted_is_cancelled(sandbox: Sandbox) -> None:
    def interrupt(output: Output) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.run("echo ready; sleep 1000", on_output=interrupt)
    [execution] = sandbox.client.request("GET", f"/v1/sandboxes/{sandbox.id}/executions")["executions"]
    assert sandbox.client.execution(execution["id"]).wait().outcome.ending == "cancelled"


def test_files_are_written_read_listed_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    entry = files.write("a/b.sh", "echo hi\n", mode=0o755, parents=True)
    assert (entry.name, entry.kind, entry.size, entry.mode) == ("b.sh", "file", 8, 0o755)
    assert sandbox.run("./a/b.sh").stdout == "hi\n"
    assert (files.read("a/b.sh"), files.read_text("/workspace/a/b.sh")) == (b"echo hi\n", "echo hi\n")
    files.write("/tmp/x y#?&", b"", parents=True)
    assert files.read("/tmp/x y#?&") == b""
    assert [entry.name for entry in files.list("a")] == ["b.sh"]
    files.move("a/b.sh", "c")
    assert files.stat("c").size == 8
    files.remove("a")
    files.remove("a")
    with pytest.raises(StockadeError) as caught:
        files.read("a/b.sh")
    assert caught.value.code == "not-found"


def test_large_files_are_streamed(sandbox: Sandbox) -> None:
    pieces = [bytes([number]) * (1 << 20) for number in range(12)]
    assert sandbox.files.write("pieces", iter(pieces)).size == 12 << 20
    sandbox.files.write("object", io.BytesIO(b"".join(pieces)))
    assert sandbox.run("cmp pieces object").ok
    streamed = sandbox.files.stream("object")
    assert max(map(len, streamed)) <= 1 << 20
    assert b"".join(sandbox.files.stream("pieces")) == b"".join(pieces)


def test_snapshots_and_copies_have_the_files(client: Client, sandbox: Sandbox) -> None:
    sandbox.files.write("state", "one")
    snapshot = sandbox.snapshot()
    sandbox.files.write("state", "two")
    copies = sandbox.fork(2)
    for copy in copies:
        with copy:
            assert copy.files.read("state") == b"two"
    with Sandbox(client=client, snapshot=snapshot) as restored:
        assert restored.files.read("state") == b"one"
    sandbox.restore(snapshot)
    assert sandbox.files.read("state") == b"one"
    assert snapshot.id in [one.id for one in client.snapshots()]
    client.delete_snapshot(snapshot)


def test_a_paused_sandbox_goes_on(client: Client, sandbox: Sandbox) -> None:
    [backend] = [one for one in client.backends() if one["backend"] == sandbox.info.backend]
    if backend["features"].get("pause", {}).get("support") != "full":
        # Without a cgroup of their own, processes of an ordinary user cannot be frozen.
        with pytest.raises(StockadeError) as caught:
            sandbox.pause()
        assert caught.value.code == "unsupported" and caught.value.remedy
        return
    sandbox.pause()
    assert sandbox.state() == "paused"
    sandbox.resume()
    assert sandbox.run("echo on").stdout == "on\n"


def test_a_workspace_of_the_host_is_changed_in_place(client: Client, tmp_path) -> None:
    (tmp_path / "in").write_text("from the host")
    with Sandbox(client=client, workspace=tmp_path) as sandbox:
        assert sandbox.run("cat in; echo made >out").stdout == "from the host"
    assert (tmp_path / "out").read_text() == "made\n"


def test_sandboxes_are_listed_by_label(client: Client) -> None:
    with Sandbox(client=client, labels={"kind": "x"}) as one, Sandbox(client=client):
        assert [info.id for info in client.sandboxes(labels={"kind": "x"})] == [one.id]
        assert [info.id for info in client.sandboxes(labels={"kind": None}, state="paused")] == []
        assert len(list(client.sandboxes())) == 2


def test_an_error_has_code_message_and_remedy(client: Client) -> None:
    with pytest.raises(StockadeError) as caught:
        Sandbox(client=client, spec={"netwrok": 1}).open()
    assert caught.value.code == "invalid" and "netwrok" in caught.value.message
    with pytest.raises(StockadeError) as caught:
        with Sandbox(client=client) as sandbox:
            sandbox.run("true", user="0:0")
    assert caught.value.code == "refused" and caught.value.remedy and caught.value.refusals
    with pytest.raises(StockadeError) as caught:
        Sandbox(client=client).run("true")
    assert caught.value.code == "invalid" and caught.value.remedy
    with pytest.raises(StockadeError) as caught:
        Client(host="unix:/nowhere/stockade.sock").health()
    assert caught.value.code == "unavailable" and caught.value.remedy


def test_a_sandbox_ends_by_itself_and_says_why(client: Client) -> None:
    with Sandbox(client=client, lifetime=3600, idle=1800) as sandbox:
        made = sandbox.info
        later = sandbox.extend(lifetime=7200)
        assert made.expires and later.expires and made.expires < later.expires
        sandbox.extend(lifetime=0.2)
        deadline = time.monotonic() + 60
        while sandbox.state() != "ended":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [info.end_reason for info in client.sandboxes(state="ended")] == ["lifetime"]
        with pytest.raises(StockadeError) as caught:
            sandbox.run("true")
        assert caught.value.code == "gone" and "lifetime" in caught.value.message


def test_jobs_and_parts_of_files(sandbox: Sandbox) -> None:
    sandbox.run("exit 4")
    found = list(sandbox.client.jobs(sandbox=sandbox.id, outcome="exited"))
    assert [job["stopped"]["event"]["outcome"]["exitCode"] for job in found] == [4]
    assert list(sandbox.client.jobs(sandbox=sandbox.id, outcome="lost")) == []
    content = bytes(range(256)) * 10_000
    sandbox.files.write("large", content)
    assert sandbox.files.read_part("large", 1000, 2_000_000) == content[1000:2_001_000]
    assert sandbox.files.read_part("large", len(content) - 5, 100) == content[-5:]
    assert sandbox.files.read_part("large", len(content), 100) == b""
    assert sandbox.files.read_part("large", 0, 0) == b""


def test_ids_do_not_lead_elsewhere(client: Client) -> None:
    for id in ("../health", "..", "a/b", "?x"):
        with pytest.raises(StockadeError) as caught:
            Sandbox.attach(id, client=client)
        assert caught.value.code == "not-found"


def test_leaving_by_an_error_leaves_nothing(client: Client) -> None:
    with pytest.raises(ZeroDivisionError):
        with Sandbox(client=client) as sandbox:
            sandbox.start("sleep 1000")
            1 / 0
    sandbox.close()


def test_a_token_over_tcp(client: Client, own_state: str, tmp_path) -> None:
    from stockade._daemon import find_binary

    binary, state = find_binary(), {**os.environ, "STOCKADE_STATE_DIR": str(tmp_path / "state")}
    token = subprocess.run([binary, "token", "new", "ci"], env=state, check=True, capture_output=True, text=True)
    serving = subprocess.Popen(
        [binary, "serve", "--json", "--listen", "127.0.0.1:0"], env=state, stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    url = json.loads(serving.stdout.readline())["url"]
    with Sandbox(host=url, token=token.stdout.strip()) as sandbox:
        assert (sandbox.info.tenant, sandbox.run("echo hi").stdout) == ("ci", "hi\n")
        with pytest.raises(StockadeError) as caught:
            Sandbox(host=url).open()
        assert caught.value.code == "unauthorized"
    serving.terminate()
    assert serving.wait(75) == 0
    serving.stdout.close()


def test_output_that_was_missed_is_told(sandbox: Sandbox) -> None:
    """More than the daemon's history, read only after the end."""
    execution = sandbox.start("head -c 3000000 /dev/zero; echo; read line", stdin=True)
    for event in execution:
        if isinstance(event, Output) and event.data.endswith(b"\n"):
            break
    execution.write("", end=True)
    late = execution.wait()
    assert late.truncated and late.missed > 0 and late.exit_code == 1
    assert any(isinstance(event, Gap) for event in execution)
