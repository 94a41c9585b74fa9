"""A Stockade sandbox as the workspace of a Pydantic AI agent::

    backend = StockadeWorkspaceBackend(image="python:3.12")
    try:
        ...  # run the agent in Workspace(backend)
    finally:
        await backend.destroy()

The backend makes its sandbox on first use and never ends it by itself: who holds the ref decides.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Awaitable, List, Mapping, Optional, TypeVar

import anyio
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from . import AsyncSandbox, Entry, Result, StockadeError
from ._oserror import to_os_error

PROVIDER = "stockade"
#: What a daemon without a setting of its own allows for the output of a command.
DEFAULT_OUTPUT_LIMIT_BYTES = 16 << 20
T = TypeVar("T")


class StockadeWorkspaceBackend:
    """Commands and files in one sandbox, made from the arguments of :class:`stockade.Sandbox` or named by ``ref``."""

    def __init__(self, ref: Optional[WorkspaceRef] = None, **spec: Any) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"a workspace of {ref.provider!r} is not one of {PROVIDER!r}")
        self._ref = ref
        self._spec = spec
        self._sandbox: Optional[AsyncSandbox] = None
        self._opening = anyio.Lock()

    @property
    def ref(self) -> Optional[WorkspaceRef]:
        return self._ref

    async def _open(self) -> AsyncSandbox:
        async with self._opening:
            if self._sandbox is None and self._ref is None:
                # A caller that is cancelled meanwhile leaves no sandbox without a ref.
                with anyio.CancelScope(shield=True):
                    self._sandbox = await AsyncSandbox(**self._spec).open()
                    self._ref = WorkspaceRef(provider=PROVIDER, id=self._sandbox.id)
            elif self._sandbox is None and self._ref is not None:
                where = {name: self._spec[name] for name in ("host", "token", "client") if name in self._spec}
                self._sandbox = await _while_there(AsyncSandbox.attach(self._ref.id, **where))
            assert self._sandbox is not None
            return self._sandbox

    async def close(self) -> None:
        """Closes the connections; the sandbox stays for who has its ref."""
        if self._sandbox is not None:
            await self._sandbox.client.close()

    async def destroy(self) -> None:
        """Ends the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.destroy()
            await self.close()

    async def working_dir(self) -> str:
        await self._open()
        return "/workspace"

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> CommandResult:
        if isinstance(command, str) != shell:
            raise TypeError("a string needs shell=True, and a sequence needs shell=False")
        sandbox = await self._open()
        result = await _while_there(sandbox.run(command, env=env, timeout=timeout))
        if result.outcome.ending in ("cancelled", "killed", "lost"):
            raise WorkspaceUnavailableError(f"the sandbox ended during the command ({result.outcome.ending})")
        return _to_command_result(result)

    async def read_bytes(self, path: str) -> bytes:
        return await self._on_file(path, (await self._open()).files.read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._on_file(path, (await self._open()).files.write(path, bytes(data), parents=True))

    async def stat(self, path: str) -> FileEntry:
        entry = await self._on_file(path, (await self._open()).files.stat(path))
        return await self._to_file_entry(entry, path)

    async def list_dir(self, path: str) -> List[FileEntry]:
        entries = await self._on_file(path, (await self._open()).files.list(path))
        return [await self._to_file_entry(entry, f"{path.rstrip('/')}/{entry.name}") for entry in entries]

    async def make_dir(self, path: str) -> None:
        sandbox = await self._open()
        try:
            await self._on_file(path, sandbox.files.make_directory(path))
        except NotADirectoryError:
            if await self.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise

    async def remove(self, path: str) -> None:
        if (await self.working_dir() + "/").startswith(path.rstrip("/") + "/"):
            raise ValueError("the working directory and those above it are not removed")
        await self.stat(path)
        await self._on_file(path, (await self._open()).files.remove(path))

    async def exists(self, path: str) -> bool:
        try:
            return (await self.stat(path)) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def _to_file_entry(self, entry: Entry, path: str) -> FileEntry:
        """Metadata of what a path leads to: the daemon does not follow a link by itself."""
        is_dir, size = entry.kind == "directory", entry.size if entry.kind == "file" else None
        if entry.kind == "symlink":
            try:
                await (await self._open()).files.list(path)
                is_dir = True
            except StockadeError:
                is_dir = False
        return FileEntry(name=os.path.basename(path), path=path, is_dir=is_dir, size=size)

    async def _on_file(self, path: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except StockadeError as error:
            sandbox = await self._open()
            if error.code == "not-found":
                await _while_there(sandbox.state())
            raise await to_os_error(sandbox.files, error, path) from error


async def _while_there(work: Awaitable[T]) -> T:
    """Work on a sandbox that may have ended."""
    try:
        return await work
    except StockadeError as error:
        if error.code in ("not-found", "gone", "unavailable"):
            raise WorkspaceUnavailableError(str(error)) from error
        raise


def _to_command_result(result: Result) -> CommandResult:
    if result.timed_out:
        raise WorkspaceTimeoutError("the command did not end in time", stdout=result.stdout, stderr=result.stderr)
    if result.truncated:
        raise WorkspaceOutputLimitError(
            "output of the command was lost",
            limit=DEFAULT_OUTPUT_LIMIT_BYTES,
            stdout=result.stdout,
            stderr=result.stderr,
        )
    stderr = result.stderr + (result.outcome.detail or result.outcome.limit_exceeded or "")
    return CommandResult(exit_code=result.outcome.shell_code, stdout=result.stdout, stderr=stderr)
