"""The Agent Development Kit ships no suite for environments and code executors: its own tools, flow and runner drive them."""

from __future__ import annotations

import base64
from typing import Any, AsyncIterator, Dict, List

import anyio
import pytest

pytest.importorskip("google.adk.environment")

from google.adk.agents import LlmAgent
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.environment import ExecutionResult
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types
from pydantic import ValidationError

from stockade import Client, StockadeError
from stockade.adk import MAX_OUTPUT_BYTES, MAX_OUTPUT_FILES, StockadeCodeExecutor, StockadeEnvironment

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def environment(client: Client, daemon: str) -> AsyncIterator[StockadeEnvironment]:
    environment = StockadeEnvironment(host=f"unix:{daemon}")
    await environment.initialize()
    yield environment
    await environment.close()


@pytest.fixture
def executor(client: Client, daemon: str) -> StockadeCodeExecutor:
    return StockadeCodeExecutor(host=f"unix:{daemon}", timeout_seconds=30)


async def test_commands_end_as_the_framework_expects(environment: StockadeEnvironment) -> None:
    assert await environment.execute("pwd") == ExecutionResult(stdout=f"{environment.working_dir}\n")
    assert await environment.execute("echo a >&2; exit 3") == ExecutionResult(exit_code=3, stderr="a\n")
    late = await environment.execute("echo begun; sleep 1000", timeout=0.5)
    assert (late.timed_out, late.exit_code, late.stdout) == (True, -1, "begun\n") and "timed-out" in late.stderr
    assert (await environment.execute("kill -9 $$")).exit_code == 137


async def test_files_are_found_by_both_kinds_of_path(environment: StockadeEnvironment) -> None:
    await environment.write_file("a/b", "text")
    assert await environment.read_file(environment.working_dir / "a" / "b") == b"text"
    await environment.write_file(environment.working_dir / "c", b"\xff")
    assert await environment.read_file("c") == b"\xff"
    with pytest.raises(FileNotFoundError):
        await environment.read_file("nowhere")
    with pytest.raises(IsADirectoryError):
        await environment.read_file("a")


async def test_it_is_made_once_and_closed_as_often_as_one_likes(client: Client, daemon: str) -> None:
    environment = StockadeEnvironment(host=f"unix:{daemon}")
    with pytest.raises(RuntimeError):
        await environment.execute("true")
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(environment.initialize)
    assert environment.is_initialized and len(list(client.sandboxes())) == 1
    await environment.close()
    await environment.close()
    assert not environment.is_initialized


async def test_the_tools_of_the_framework_work(environment: StockadeEnvironment) -> None:
    toolset = EnvironmentToolset(environment=environment)
    tools = {tool.name: tool for tool in await toolset.get_tools()}

    async def call(name: str, **arguments: Any) -> Dict[str, Any]:
        return await tools[name].run_async(args=arguments, tool_context=None)

    assert (await call("WriteFile", path="x.sh", content="echo one\n"))["status"] == "ok"
    assert (await call("EditFile", path="x.sh", old_string="one", new_string="two"))["status"] == "ok"
    assert await call("Execute", command="sh x.sh") == {"status": "ok", "stdout": "two\n"}
    assert "echo two" in (await call("ReadFile", path="x.sh"))["content"]
    assert await call("ReadFile", path="y") == {"status": "error", "error": "File not found: y"}
    assert (await call("Execute", command="exit 2"))["exit_code"] == 2
    await toolset.close()
    assert not environment.is_initialized


def execute(executor: StockadeCodeExecutor, code: str, *files: File) -> CodeExecutionResult:
    return executor.execute_code(None, CodeExecutionInput(code=code, input_files=list(files)))


def test_code_reads_its_files_and_leaves_others(executor: StockadeCodeExecutor) -> None:
    text = File("in/a.csv", base64.b64encode(b"1,2").decode())
    code = "print(open('in/a.csv').read() + open('b').read()); open('out.csv', 'w').write('3')"
    result = execute(executor, code, text, File("b", b"4"))
    assert (result.stdout, result.stderr, result.exit_code) == ("1,24\n", "", 0)
    assert result.output_files == [File("out.csv", b"3", "text/csv")]


def test_failures_are_on_stderr_and_warnings_of_a_success_are_not(executor: StockadeCodeExecutor) -> None:
    assert execute(executor, "import sys; sys.stderr.write('careful')").stderr == ""
    assert "ZeroDivisionError" in execute(executor, "1 / 0").stderr
    silent = execute(executor, "import os; os._exit(5)")
    assert (silent.stderr, silent.exit_code) == ("exit status 5", 5)
    executor.timeout_seconds = 1
    assert "timed-out" in execute(executor, "while True: pass").stderr


def test_artifacts_are_bounded_and_the_model_is_told(executor: StockadeCodeExecutor) -> None:
    many = execute(executor, f"for i in range({MAX_OUTPUT_FILES + 1}): open(str(i), 'w')")
    assert len(many.output_files) == MAX_OUTPUT_FILES and "not every file" in many.stdout
    large = execute(executor, f"open('x', 'wb').truncate({MAX_OUTPUT_BYTES + 1})")
    assert large.output_files == [] and "not every file" in large.stdout


def test_executions_share_nothing(executor: StockadeCodeExecutor) -> None:
    assert execute(executor, "open('x', 'w')").exit_code == 0
    assert execute(executor, "import os; print(os.listdir())").stdout == "[]\n"


def test_what_is_not_offered_is_refused(executor: StockadeCodeExecutor) -> None:
    with pytest.raises(ValueError):
        StockadeCodeExecutor(stateful=True)
    with pytest.raises(ValidationError):
        StockadeCodeExecutor(netwrok=["example.org"])
    executor.spec = {"netwrok": "none"}
    with pytest.raises(StockadeError):
        execute(executor, "pass")


class ScriptedModel(BaseLlm):
    model: str = "scripted"
    says: List[types.Part]

    async def generate_content_async(self, llm_request, stream=False):
        yield LlmResponse(content=types.Content(role="model", parts=[self.says.pop(0)]))


def ask(runner: InMemoryRunner) -> List[types.Part]:
    """Asks by the synchronous method, which has a thread and an event loop of its own each time."""
    message = types.UserContent("go on")
    events = list(runner.run(user_id="user", session_id="session", new_message=message))
    return [part for event in events if event.content for part in event.content.parts or []]


def make_runner(agent: LlmAgent) -> InMemoryRunner:
    runner = InMemoryRunner(agent=agent)
    runner.session_service.create_session_sync(app_name=runner.app_name, user_id="user", session_id="session")
    return runner


def test_an_agent_keeps_its_environment_between_questions(client: Client, daemon: str) -> None:
    calls = [types.Part.from_function_call(name="Execute", args={"command": "echo x >>log; cat log"})] * 2
    done = types.Part.from_text(text="done")
    environment = StockadeEnvironment(host=f"unix:{daemon}")
    tools = [EnvironmentToolset(environment=environment)]
    agent = LlmAgent(name="a", model=ScriptedModel(says=[calls[0], done, calls[1], done]), tools=tools)
    runner = make_runner(agent)
    answers = [part.function_response for _ in range(2) for part in ask(runner) if part.function_response]
    assert [answer.response["stdout"] for answer in answers] == ["x\n", "x\nx\n"]
    anyio.run(runner.close)
    assert list(client.sandboxes()) == []


def test_code_of_an_agent_leaves_artifacts(executor: StockadeCodeExecutor) -> None:
    code = types.Part.from_text(text="```python\nopen('answer.txt', 'w').write('42'); print(6 * 7)\n```")
    says = [code, types.Part.from_text(text="done")]
    runner = make_runner(LlmAgent(name="a", model=ScriptedModel(says=says), code_executor=executor))
    [result] = [part.code_execution_result for part in ask(runner) if part.code_execution_result]
    assert result.outcome == types.Outcome.OUTCOME_OK and "42" in result.output

    async def load() -> types.Part:
        return await runner.artifact_service.load_artifact(
            app_name=runner.app_name, user_id="user", session_id="session", filename="answer.txt"
        )

    assert anyio.run(load).inline_data.data == b"42"
