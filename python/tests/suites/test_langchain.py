"""The suite of langchain-tests for sandboxes of deepagents."""

from __future__ import annotations

from typing import Iterator

import pytest

pytest.importorskip("deepagents")

from langchain_tests.integration_tests import SandboxIntegrationTests

from stockade import Client
from stockade.langchain import StockadeSandbox

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestStockadeSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, daemon: str) -> Iterator[StockadeSandbox]:
        # Tests call `python`; the host's directories, which are the root here, may have `python3` alone.
        path = "/tmp/bin:/usr/local/bin:/usr/bin:/bin"
        with Client(host=f"unix:{daemon}") as client, StockadeSandbox(client=client, env={"PATH": path}) as backend:
            backend.execute("mkdir /tmp/bin && ln -s $(command -v python3) /tmp/bin/python")
            yield backend
