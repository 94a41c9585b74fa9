"""One sandbox: commands and files in it, copies and snapshots of it, and its end."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Type, Union

from .._error import StockadeError
from .._leftovers import forget_sandbox, remember_sandbox
from .._model import Output, Result, SandboxInfo, Snapshot
from .._spec import Command, Limits, Network, build_command, build_life, build_spec
from .client import AsyncClient
from .concurrency import Lock, shield
from .execution import AsyncExecution
from .files import AsyncFiles
from .transport import path_of


class AsyncSandbox:
    """A sandbox that is made when it is entered, and is gone with everything in it when it is left.

    Without arguments it has what the daemon's configuration says: no network, an empty workspace, limits on
    everything. ``image`` is the name of an image, ``workspace`` a directory of the host that is changed in place,
    ``network`` a list of hosts that may be reached, ``limits`` such as ``{"memory": "1g"}``; ``spec`` takes every other
    field as the API has it. Where something cannot be enforced, it is not made. ``lifetime`` and ``idle`` are in seconds:
    it ends by itself after the one, and when it was not used for the other.
    """

    def __init__(
        self,
        *,
        image: Union[str, Mapping[str, Any], None] = None,
        workspace: Union[str, "os.PathLike[str]", Mapping[str, Any], None] = None,
        env: Optional[Mapping[str, str]] = None,
        network: Optional[Network] = None,
        limits: Optional[Limits] = None,
        backend: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        spec: Optional[Mapping[str, Any]] = None,
        snapshot: Union[Snapshot, str, None] = None,
        lifetime: Optional[float] = None,
        idle: Optional[float] = None,
        host: Optional[str] = None,
        token: Optional[str] = None,
        client: Optional[AsyncClient] = None,
    ) -> None:
        self._spec = build_spec(
            image=image,
            workspace=workspace,
            env=env,
            network=network,
            limits=limits,
            backend=backend,
            labels=labels,
            spec=spec,
        )
        self._snapshot = snapshot
        self._lifetime, self._idle = lifetime, idle
        self._owns_client = client is None
        self.client = client or AsyncClient(host, token)
        self._info: Optional[SandboxInfo] = None
        self._files: Optional[AsyncFiles] = None
        self._owns_sandbox = True
        self._destroyed = False
        self._opening = Lock()

    @classmethod
    async def attach(
        cls,
        id: str,
        *,
        host: Optional[str] = None,
        token: Optional[str] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncSandbox:
        """A sandbox that is there already. Leaving it does not end it; ``destroy`` does."""
        sandbox = cls(host=host, token=token, client=client)
        sandbox._owns_sandbox = False
        try:
            info = await sandbox.client.request("GET", path_of("sandboxes", id))
            await sandbox._hold(SandboxInfo.from_json(info))
        except BaseException:
            with shield():
                await sandbox.close()
            raise
        return sandbox

    async def __aenter__(self) -> AsyncSandbox:
        return await self.open()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        with shield():
            await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self._info.id!r})" if self._info else f"{type(self).__name__}()"

    async def open(self) -> AsyncSandbox:
        """Makes it, unless it is there. Whoever opens one without ``with`` closes it."""
        async with self._opening:
            if self._info is None:
                await self._make()
        return self

    async def _make(self) -> None:
        try:
            made = await self.client.create(self._spec, self._snapshot, lifetime=self._lifetime, idle=self._idle)
            await self._hold(made)
        except BaseException:
            with shield():
                await self._close_client()
            raise

    async def _hold(self, info: SandboxInfo) -> None:
        transport = await self.client.transport()
        if self._owns_sandbox:
            remember_sandbox(info.id, transport.address)
        self._info = info
        self._files = AsyncFiles(transport, info.id)

    async def close(self) -> None:
        """Ends it, unless it was attached to, and closes the connections. Idempotent."""
        try:
            if self._info is not None and self._owns_sandbox and not self._destroyed:
                await self.destroy()
        finally:
            await self._close_client()

    async def _close_client(self) -> None:
        if self._owns_client:
            await self.client.close()

    async def destroy(self) -> None:
        """Ends it and everything in it. Nothing is left when this returns. Idempotent."""
        id = self.id
        await self.client.destroy(id)
        self._destroyed = True
        forget_sandbox(id)

    @property
    def info(self) -> SandboxInfo:
        """What the daemon said when it was made."""
        if self._info is None:
            remedy = "use it as a context manager, or open it first"
            raise StockadeError("invalid", "the sandbox is not made yet", remedy)
        return self._info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def files(self) -> AsyncFiles:
        self.info
        assert self._files is not None
        return self._files

    async def run(
        self,
        command: Command,
        *,
        input: Union[bytes, str, None] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        max_output: Union[str, int, None] = None,
        on_output: Optional[Callable[[Output], Any]] = None,
    ) -> Result:
        """Runs a command to its end: a string by the shell, a sequence as it is. ``timeout`` is in seconds, and
        ends every process of it. A command that fails is a result; one that is interrupted is cancelled."""
        execution = await self.start(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            max_output=max_output,
            stdin=input is not None,
        )
        return await execution.finish(input, on_output)

    async def start(
        self,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        max_output: Union[str, int, None] = None,
        stdin: bool = False,
        terminal: Optional[Tuple[int, int]] = None,
    ) -> AsyncExecution:
        """Starts a command and returns. ``terminal`` is its rows and columns."""
        body = build_command(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            max_output=max_output,
            stdin=stdin,
            terminal=terminal,
        )
        path = path_of("sandboxes", self.id, "executions")
        key = str(uuid.uuid4())
        transport = await self.client.transport()
        try:
            started = await transport.request("POST", path, json=body, key=key)
        except StockadeError:
            raise
        except BaseException:
            # By the same key the daemon names what it has started for it, if anything. The interruption is the one to tell.
            with shield(), suppress(StockadeError):
                started = await transport.request("POST", path, json=body, key=key)
                await transport.request("POST", path_of("executions", started["id"], "cancel"))
            raise
        return AsyncExecution(transport, started["id"])

    async def pause(self) -> None:
        """Stops every process where it is."""
        await self.client.request("POST", path_of("sandboxes", self.id, "pause"))

    async def resume(self) -> None:
        """Continues after ``pause``."""
        await self.client.request("POST", path_of("sandboxes", self.id, "resume"))

    async def extend(self, *, lifetime: Optional[float] = None, idle: Optional[float] = None) -> SandboxInfo:
        """Has it end ``lifetime`` seconds from now, or when it was not used for ``idle`` seconds. What is not given stays."""
        body = build_life(lifetime, idle)
        return SandboxInfo.from_json(
            await self.client.request("POST", path_of("sandboxes", self.id, "extend"), json=body)
        )

    async def state(self) -> str:
        """``running``, ``paused`` or ``ended``."""
        body = await self.client.request("GET", path_of("sandboxes", self.id))
        return str(body["state"])

    async def snapshot(self, kind: str = "files") -> Snapshot:
        """Captures its state, with memory if ``kind`` is ``full``. It goes on."""
        body = await self.client.request("POST", path_of("sandboxes", self.id, "snapshots"), json={"kind": kind})
        return Snapshot.from_json(body)

    async def restore(self, snapshot: Union[Snapshot, str]) -> None:
        """Brings a captured state back in place."""
        wanted = snapshot.id if isinstance(snapshot, Snapshot) else snapshot
        await self.client.request("POST", path_of("sandboxes", self.id, "restore"), json={"snapshot": wanted})

    async def fork(self, count: int = 1) -> Sequence[AsyncSandbox]:
        """Makes copies of it, with its memory where the backend can. Each is a context manager of its own."""
        transport = await self.client.transport()
        body = await transport.request("POST", path_of("sandboxes", self.id, "fork"), json={"count": count})
        copies: List[AsyncSandbox] = []
        for made in body["sandboxes"]:
            copy = type(self)(client=AsyncClient(address=transport.address))
            copy._owns_client = True
            await copy._hold(SandboxInfo.from_json(made))
            copies.append(copy)
        return copies
