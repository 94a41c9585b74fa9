"""A Pydantic AI agent whose workspace is a Stockade sandbox. The model is a scripted one, so that this runs without a
key."""

import asyncio

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel

from stockade.pydantic_ai import StockadeWorkspaceBackend

agent = Agent(TestModel())


@agent.tool
async def multiply(context: RunContext) -> str:
    await context.workspace.write_text("a.sh", "echo $((6 * 7))")
    return (await context.workspace.run(["sh", "a.sh"])).stdout


async def main() -> None:
    backend = StockadeWorkspaceBackend()
    try:
        result = await agent.run("What is 6 * 7?", workspace=backend)
        print(result.output)
        assert "42" in result.output
    finally:
        await backend.destroy()


asyncio.run(main())
