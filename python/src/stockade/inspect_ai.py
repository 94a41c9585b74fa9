"""Stockade as a sandbox of Inspect: ``sandbox="stockade"``, ``("stockade", "stockade.json")`` with a spec in a file, or
``SandboxEnvironmentSpec("stockade", StockadeConfig(image="python:3.12"))``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Union, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from inspect_ai.util._sandbox.environment import SandboxUnavailableError
from pydantic import BaseModel

from . import AsyncSandbox, Result, StockadeError
from ._oserror import to_os_error


class StockadeConfig(BaseModel, frozen=True):
    """What the sandboxes of a task are: the arguments of :class:`stockade.Sandbox`."""

    image: Optional[str] = None
    limits: Optional[Dict[str, Union[str, int]]] = None
    network: Optional[List[str]] = None
    spec: Optional[Dict[str, Any]] = None
    host: Optional[str] = None


@sandboxenv(name="stockade")
class StockadeSandboxEnvironment(SandboxEnvironment):
    """One sandbox for each sample."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Optional[SandboxEnvironmentConfigType], metadata: Dict[str, str]
    ) -> Dict[str, SandboxEnvironment]:
        arguments = _read_config(config).model_dump(exclude_none=True)
        return {"default": cls(await AsyncSandbox(**arguments).open())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Optional[SandboxEnvironmentConfigType],
        environments: Dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            async with environment.as_type(cls).sandbox:
                pass

    @classmethod
    def config_files(cls) -> List[str]:
        return ["stockade.json"]

    @classmethod
    def config_deserialize(cls, config: Dict[str, Any]) -> BaseModel:
        return StockadeConfig(**config)

    async def exec(
        self,
        cmd: List[str],
        input: Union[str, bytes, None] = None,
        cwd: Optional[str] = None,
        env: Optional[Dict[str, str]] = None,
        user: Optional[str] = None,
        timeout: Optional[int] = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        try:
            user = None if user is None else await self._find_user(user)
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
            result = await self.sandbox.run(
                cmd, input=input, cwd=cwd, env=env, user=user, timeout=timeout, max_output=limit
            )
        except StockadeError as error:
            if user is not None and error.code in ("refused", "unsupported"):
                raise SandboxUserUnsupportedError(str(error)) from error
            if error.code in ("not-found", "gone", "unavailable"):
                raise SandboxUnavailableError(str(error)) from error
            raise
        return _to_exec_result(cmd, result)

    async def _find_user(self, name: str) -> str:
        """A user in numbers, as the sandbox's own files have it."""
        if name.isdecimal():
            return name
        for line in (await self.sandbox.files.read_text("/etc/passwd")).splitlines():
            fields = line.split(":")
            if fields[0] == name and len(fields) > 3:
                return f"{fields[2]}:{fields[3]}"
        raise SandboxUserUnsupportedError(f"there is no user {name!r} in the sandbox")

    async def write_file(self, file: str, contents: Union[str, bytes]) -> None:
        try:
            await self.sandbox.files.write(_absolute(file), contents, parents=True)
        except StockadeError as error:
            raise await to_os_error(self.sandbox.files, error, _absolute(file)) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:
        content = bytearray()
        try:
            async for piece in self.sandbox.files.stream(_absolute(file)):
                content += piece
                if len(content) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                    raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        except StockadeError as error:
            raise await to_os_error(self.sandbox.files, error, _absolute(file)) from error
        return content.decode() if text else bytes(content)

    def default_polling_interval(self) -> float:
        return 0.2


def _read_config(config: Optional[SandboxEnvironmentConfigType]) -> StockadeConfig:
    if isinstance(config, str):
        return StockadeConfig(**json.loads(Path(config).read_text()))
    return StockadeConfig() if config is None else StockadeConfig.model_validate(config.model_dump())


def _absolute(path: str) -> str:
    """A path of the sandbox, so that links lead where they lead for its programs."""
    return path if path.startswith("/") else f"/workspace/{path}"


def _to_exec_result(cmd: List[str], result: Result) -> ExecResult[str]:
    outcome = result.outcome
    if outcome.timed_out:
        raise TimeoutError(f"{cmd[0]} did not end in time")
    if outcome.start_failure == "not-executable":
        raise PermissionError(outcome.detail)
    if outcome.ending in ("cancelled", "killed", "lost"):
        raise SandboxUnavailableError(f"the sandbox ended: {outcome.detail or outcome.ending}")
    if result.truncated:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
    stderr = result.stderr + (outcome.detail or outcome.limit_exceeded or "")
    return ExecResult(result.ok, outcome.shell_code, result.stdout, stderr)
