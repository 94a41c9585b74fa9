"""The self-check that Inspect has for sandbox environments."""

from __future__ import annotations

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from stockade.inspect_ai import StockadeConfig, StockadeSandboxEnvironment

pytestmark = pytest.mark.anyio

#: What the daemon does not offer, with the reason.
KNOWN_FAILURES = {
    "test_exec_as_user": "a sandbox on the host's directories has one user, and no `adduser` works in it",
    "test_exec_large_command": "the body of a command has at most 1 MiB",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest, daemon: str):
    reason = KNOWN_FAILURES.get(request.node.originalname)
    if reason:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    config = StockadeConfig(host=f"unix:{daemon}", limits={"memory": "1g"})
    environments = await StockadeSandboxEnvironment.sample_init("task", config, {})
    yield environments["default"]
    await StockadeSandboxEnvironment.sample_cleanup("task", config, environments, False)
