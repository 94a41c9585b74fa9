"""What the asynchronous half does otherwise: it is cancelled, and it does several things at once."""

from __future__ import annotations

import anyio
import pytest

from stockade import AsyncClient, AsyncSandbox, Client, Exit, Output

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_many_commands_at_once(async_sandbox: AsyncSandbox) -> None:
    results = {}

    async def run(number: int) -> None:
        results[number] = (await async_sandbox.run(f"echo {number}")).stdout

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(run, number)
    assert results == {number: f"{number}\n" for number in range(8)}


async def test_events_files_and_copies(async_sandbox: AsyncSandbox) -> None:
    execution = await async_sandbox.start("read line; echo $line", stdin=True)
    await execution.write("x\n", end=True)
    events = [event async for event in execution]
    assert [type(event) for event in events] == [Output, Exit]

    async def pieces():
        yield b"a"
        yield b"b"

    await async_sandbox.files.write("file", pieces())
    [copy] = await async_sandbox.fork()
    async with copy:
        assert await copy.files.read("file") == b"ab"
        assert [piece async for piece in copy.files.stream("file")] == [b"ab"]


async def test_a_run_that_is_cancelled_ends_its_program(async_sandbox: AsyncSandbox) -> None:
    with anyio.CancelScope() as scope:
        await async_sandbox.run("echo ready; sleep 1000", on_output=lambda _: scope.cancel())
    assert scope.cancelled_caught
    path = f"/v1/sandboxes/{async_sandbox.id}/executions"
    [execution] = (await async_sandbox.client.request("GET", path))["executions"]
    ended = await (await async_sandbox.client.execution(execution["id"])).wait()
    assert ended.outcome.ending == "cancelled"


async def test_a_create_that_is_cancelled_leaves_nothing(client: Client, daemon: str) -> None:
    """Cancelled at many instants of it; the fixture of the client counts."""
    async with AsyncClient(host=f"unix:{daemon}") as async_client:
        await async_client.health()
        for step in range(12):
            with anyio.move_on_after(step / 2000):
                async with AsyncSandbox(client=async_client) as sandbox:
                    await sandbox.run("sleep 1000")
