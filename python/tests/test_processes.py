"""Threads, forks, event loops and Ctrl-C: what programs around the package do to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stockade import AsyncSandbox, Client, Sandbox, StockadeError
from stockade._daemon import STOP_TIMEOUT_SECONDS, find_binary

HEED_CTRL_C = """
import signal

# A shell lets what it runs in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
SYNCHRONOUS = """
from stockade import Sandbox

with Sandbox() as sandbox:
    sandbox.run("echo ready; sleep 1000", on_output=lambda output: print(output.text, flush=True))
"""
ASYNCHRONOUS = """
import asyncio
from stockade import AsyncSandbox

async def main():
    async with AsyncSandbox() as sandbox:
        await sandbox.run("echo ready; sleep 1000", on_output=lambda output: print(output.text, flush=True))

asyncio.run(main())
"""
FORKED = """
import os
from stockade import Sandbox

def repeat(sandbox, word):
    for _ in range(100):
        assert sandbox.files.read(word) == word.encode()

with Sandbox() as sandbox:
    for word in ("child", "parent"):
        sandbox.files.write(word, word)
    child = os.fork()
    if child == 0:
        try:
            repeat(sandbox, "child")
            os._exit(0)
        finally:
            os._exit(1)
    repeat(sandbox, "parent")
    assert os.waitpid(child, 0)[1] == 0
"""


def test_threads_share_a_sandbox(client: Client) -> None:
    with ThreadPoolExecutor(8) as threads, Sandbox(client=client) as sandbox:
        assert list(threads.map(lambda number: sandbox.run(f"echo {number}").stdout, range(32))) == [
            f"{number}\n" for number in range(32)
        ]


def test_threads_that_open_one_sandbox_make_one(client: Client) -> None:
    sandbox = Sandbox(client=client)
    with ThreadPoolExecutor(8) as threads:
        assert {opened.id for opened in threads.map(lambda _: sandbox.open(), range(8))} == {sandbox.id}
    assert [info.id for info in client.sandboxes()] == [sandbox.id]
    sandbox.close()


def test_a_forked_child_and_its_parent_do_not_read_each_others_answers(daemon: str, client: Client) -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True)


@pytest.mark.parametrize("code", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_ctrl_c_leaves_nothing(daemon: str, client: Client, code: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HEED_CTRL_C + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate()
    assert program.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt")
    assert list(client.sandboxes()) == []


def test_event_loops_take_turns_on_a_sandbox_over_tcp(tmp_path: Path) -> None:
    """Each `asyncio.run` has a loop of its own, as have the cells of some notebooks."""
    state = {**os.environ, "STOCKADE_STATE_DIR": str(tmp_path)}
    token = subprocess.run([find_binary(), "token", "new", "x"], env=state, check=True, stdout=subprocess.PIPE, text=True)
    command = [find_binary(), "serve", "--json", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=state, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        sandbox = AsyncSandbox(host=json.loads(serving.stdout.readline())["url"], token=token.stdout.strip())
        asyncio.run(sandbox.open())
        for number in range(3):
            assert asyncio.run(sandbox.run(f"echo {number}")).stdout == f"{number}\n"
        asyncio.run(sandbox.close())
        serving.terminate()
        assert serving.wait(STOP_TIMEOUT_SECONDS) == 0


def test_a_socket_that_lies_deep_and_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StockadeError) as caught:
        Client(host=f"unix:{tmp_path}/{'x' * 120}/stockade.sock").health()
    assert caught.value.code == "unavailable"
