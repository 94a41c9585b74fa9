"""Stockade for agents of Google's Agent Development Kit: an environment for its toolset, and a code executor::

    from google.adk.agents import LlmAgent
    from google.adk.tools.environment import EnvironmentToolset
    from stockade.adk import StockadeCodeExecutor, StockadeEnvironment

    tools = [EnvironmentToolset(environment=StockadeEnvironment(image="python:3.12"))]
    agent = LlmAgent(name="coder", model=..., tools=tools)
    agent = LlmAgent(name="analyst", model=..., code_executor=StockadeCodeExecutor(image="python:3.12"))
"""

from __future__ import annotations

import base64
import mimetypes
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.environment import BaseEnvironment, ExecutionResult
from pydantic import ConfigDict, Field

from . import AsyncSandbox, Result, Sandbox, StockadeError
from ._explain import explain_end, explain_missing
from ._oserror import to_os_error

WORKING_DIR = "/workspace"
#: Bounds of what a code execution hands back as artifacts.
MAX_OUTPUT_FILES = 64
MAX_OUTPUT_BYTES = 16 << 20
DEFAULT_MIME_TYPE = "application/octet-stream"


class StockadeEnvironment(BaseEnvironment):
    """One sandbox, made from the arguments of :class:`stockade.Sandbox` when this is initialized and gone with
    everything in it when this is closed."""

    def __init__(self, **spec: Any) -> None:
        self._spec = spec
        self._sandbox: Optional[AsyncSandbox] = None

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment is not initialized: call initialize() first")
        return self._sandbox

    @property
    def working_dir(self) -> Path:
        return Path(WORKING_DIR)

    async def initialize(self) -> None:
        if self._sandbox is None:
            self._sandbox = AsyncSandbox(**self._spec)
        await self._sandbox.open()
        self.is_initialized = True

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self.is_initialized = False
        if sandbox is not None:
            await sandbox.close()

    async def execute(self, command: str, *, timeout: Optional[float] = None) -> ExecutionResult:
        """Runs a command by the shell. Without a timeout that of the daemon's configuration holds."""
        result = await self.sandbox.run(command, timeout=timeout)
        return ExecutionResult(
            exit_code=result.outcome.shell_code,
            stdout=result.stdout,
            stderr=result.stderr + explain_missing(result) + explain_end(result),
            timed_out=result.timed_out,
        )

    async def read_file(self, path: Union[str, "os.PathLike[str]"]) -> bytes:
        name = os.path.join(WORKING_DIR, path)
        try:
            return await self.sandbox.files.read(name)
        except StockadeError as error:
            raise await to_os_error(self.sandbox.files, error, name) from error

    async def write_file(self, path: Union[str, "os.PathLike[str]"], content: Union[str, bytes]) -> None:
        name = os.path.join(WORKING_DIR, path)
        try:
            await self.sandbox.files.write(name, content, parents=True)
        except StockadeError as error:
            raise await to_os_error(self.sandbox.files, error, name) from error


class StockadeCodeExecutor(BaseCodeExecutor):
    """Runs each block of Python that a model writes in a sandbox of its own, so that sessions share nothing. Its root
    needs ``python3``. The other fields are arguments of :class:`stockade.Sandbox`."""

    model_config = ConfigDict(extra="forbid")

    #: Variables of one block are gone in the next: the framework must not be told otherwise.
    stateful: bool = Field(default=False, frozen=True, exclude=True)
    image: Optional[str] = None
    env: Optional[Dict[str, str]] = None
    network: Optional[List[str]] = None
    limits: Optional[Dict[str, Union[str, int]]] = None
    backend: Optional[str] = None
    labels: Optional[Dict[str, str]] = None
    spec: Optional[Dict[str, Any]] = None
    host: Optional[str] = None
    token: Optional[str] = Field(default=None, repr=False, exclude=True)

    def __init__(self, **fields: Any) -> None:
        if fields.get("stateful"):
            raise ValueError("stateful is not offered: each block of code has a sandbox of its own")
        super().__init__(**fields)

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        inputs = code_execution_input.input_files
        with Sandbox(**self._sandbox_arguments()) as sandbox:
            for file in inputs:
                sandbox.files.write(file.name, _decode_content(file), parents=True)
            code = code_execution_input.code
            result = sandbox.run(["python3", "-"], input=code, timeout=self.timeout_seconds)
            files, note = _collect_files(sandbox, {os.path.normpath(file.name) for file in inputs})
        return CodeExecutionResult(
            stdout=result.stdout + explain_missing(result) + note,
            stderr=_explain_failure(result),
            output_files=files,
            exit_code=result.outcome.shell_code,
        )

    def _sandbox_arguments(self) -> Dict[str, Any]:
        names = ("image", "env", "network", "limits", "backend", "labels", "spec", "host", "token")
        return {name: getattr(self, name) for name in names}


def _decode_content(file: File) -> bytes:
    """The framework has bytes as they are, and text in base64."""
    return base64.b64decode(file.content) if isinstance(file.content, str) else file.content


def _collect_files(sandbox: Sandbox, known: "set[str]") -> "tuple[List[File], str]":
    """Regular files that the code left in its directory, and a line for the model if some are not handed back."""
    files: List[File] = []
    left = MAX_OUTPUT_BYTES
    try:
        for entry in sandbox.files.scan():
            if entry.kind != "file" or entry.name in known:
                continue
            content = _read_at_most(sandbox, entry.name, left) if len(files) < MAX_OUTPUT_FILES else None
            if content is None:
                return files, "\n[not every file is among the artifacts: they are too many or too large]\n"
            left -= len(content)
            files.append(File(entry.name, content, mimetypes.guess_type(entry.name)[0] or DEFAULT_MIME_TYPE))
    except StockadeError as error:
        return files, f"\n[files could not be read: {error.message}]\n"
    return files, ""


def _read_at_most(sandbox: Sandbox, path: str, limit: int) -> Optional[bytes]:
    """A file of at most so many bytes: what was listed may have grown since."""
    content = bytearray()
    for piece in sandbox.files.stream(path):
        content += piece
        if len(content) > limit:
            return None
    return bytes(content)


def _explain_failure(result: Result) -> str:
    """What the code wrote about its failure; nothing for a success, which the framework would take for a failure."""
    if result.ok:
        return ""
    return result.stderr + explain_end(result) or f"exit status {result.outcome.shell_code}"
