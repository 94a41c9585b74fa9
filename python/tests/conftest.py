"""A real daemon for all tests, with a state directory of its own; nothing of the user's is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from typing import Iterator

import pytest

from stockade import AsyncSandbox, Client, Sandbox
from stockade._daemon import STOP_TIMEOUT_SECONDS, find_binary


@pytest.fixture(scope="session", autouse=True)
def own_state() -> Iterator[str]:
    """A state directory that the tests and the programs that they start share."""
    directory = tempfile.mkdtemp(prefix="stockade-python-")
    os.environ["STOCKADE_STATE_DIR"] = directory
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def daemon(own_state: str) -> Iterator[str]:
    """The socket of a daemon that serves this state directory."""
    serving = subprocess.Popen(
        [find_binary(), "serve"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    yield serving.stdout.readline().split(maxsplit=1)[1].strip()
    serving.terminate()
    assert serving.wait(STOP_TIMEOUT_SECONDS) == 0
    serving.stdout.close()


@pytest.fixture
def client(daemon: str) -> Iterator[Client]:
    with Client(host=f"unix:{daemon}") as client:
        yield client
        assert list(client.sandboxes()) == [], "a test left a sandbox"


@pytest.fixture
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox(client=client) as sandbox:
        yield sandbox


@pytest.fixture
async def async_sandbox(client: Client, daemon: str):
    async with AsyncSandbox(host=f"unix:{daemon}") as sandbox:
        yield sandbox
