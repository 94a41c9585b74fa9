"""The conformance suite of Pydantic AI for workspace backends."""

from __future__ import annotations

from typing import Awaitable, Callable, Iterator

import pytest

pytest.importorskip("pydantic_ai.workspaces")

from pydantic_ai.workspaces import WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from stockade import Client
from stockade.pydantic_ai import StockadeWorkspaceBackend


class TestStockadeWorkspaceBackend(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, daemon: str) -> Iterator[None]:
        """The backend ends no sandbox by itself, so the fixture does."""
        yield
        with Client(host=f"unix:{daemon}") as client:
            for sandbox in client.sandboxes():
                client.destroy(sandbox.id)

    @pytest.fixture
    def fresh_backend(self, daemon: str) -> Callable[[], StockadeWorkspaceBackend]:
        return lambda: StockadeWorkspaceBackend(host=f"unix:{daemon}")

    @pytest.fixture
    def backend(self, fresh_backend: Callable[[], StockadeWorkspaceBackend]) -> StockadeWorkspaceBackend:
        return fresh_backend()

    @pytest.fixture
    def attach_backend(self, daemon: str) -> Callable[[WorkspaceRef], StockadeWorkspaceBackend]:
        return lambda ref: StockadeWorkspaceBackend(ref, host=f"unix:{daemon}")

    @pytest.fixture
    def destroy_environment(self) -> Callable[[StockadeWorkspaceBackend], Awaitable[None]]:
        return StockadeWorkspaceBackend.destroy
