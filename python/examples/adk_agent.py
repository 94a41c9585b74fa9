"""An agent of the Agent Development Kit whose tools work in a Stockade sandbox, and one whose code runs in one. The model
is a scripted one, so that this runs without a key; put your own in its place."""

import asyncio
import warnings

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

from stockade.adk import StockadeCodeExecutor, StockadeEnvironment

# The framework says of its environments that they may change.
warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")


class ScriptedModel(BaseLlm):
    """Says one thing after the other."""

    model: str = "scripted"
    says: list[types.Part]

    async def generate_content_async(self, llm_request, stream=False):
        yield LlmResponse(content=types.Content(role="model", parts=[self.says.pop(0)]))


async def ask(agent: LlmAgent) -> str:
    """Everything that tools and code answered, and the last word."""
    async with InMemoryRunner(agent=agent) as runner:
        events = await runner.run_debug("What is 6 * 7?", quiet=True)
    parts = [part for event in events if event.content for part in event.content.parts or []]
    answers = [part.function_response or part.code_execution_result or part.text for part in parts]
    return "\n".join(str(answer) for answer in answers if answer)


call = types.Part.from_function_call(name="Execute", args={"command": "echo $((6 * 7))"})
code = types.Part.from_text(text="```python\nprint(6 * 7)\n```")
done = types.Part.from_text(text="done")
with_tools = LlmAgent(
    name="coder",
    model=ScriptedModel(says=[call, done]),
    tools=[EnvironmentToolset(environment=StockadeEnvironment())],
)
with_code = LlmAgent(
    name="analyst", model=ScriptedModel(says=[code, done]), code_executor=StockadeCodeExecutor(timeout_seconds=10)
)

for agent in (with_tools, with_code):
    answer = asyncio.run(ask(agent))
    print(answer)
    assert "42" in answer
