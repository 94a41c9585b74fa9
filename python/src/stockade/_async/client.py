"""A daemon: its sandboxes, executions, snapshots and backends."""

from __future__ import annotations

import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any, Dict, AsyncIterator, List, Mapping, Optional, Type, Union

from .._daemon import Address, find_address
from .._error import StockadeError
from .._model import SandboxInfo, Snapshot
from .._spec import build_life
from .concurrency import Lock, in_thread, shield
from .execution import AsyncExecution
from .transport import AsyncTransport, path_of


class AsyncClient:
    """A daemon of this user or, with ``host`` and ``token``, another one. Without a daemon a private one is started."""

    def __init__(
        self, host: Optional[str] = None, token: Optional[str] = None, *, address: Optional[Address] = None
    ) -> None:
        self._host, self._token, self._address = host, token, address
        # At once: between a copy and its handle there must be nothing to wait for.
        self._transport: Optional[AsyncTransport] = None if address is None else AsyncTransport(address)
        self._opening = Lock()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Sandboxes are not ended by it."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def transport(self) -> AsyncTransport:
        """The connections, which are made when they are first needed."""
        if self._transport is not None:
            return self._transport
        async with self._opening:
            if self._transport is None:
                address = self._address
                if address is None:
                    address = await in_thread(lambda: find_address(self._host, self._token))
                self._transport = AsyncTransport(address)
            return self._transport

    async def request(self, method: str, path: str, **options: Any) -> Any:
        """Any request of the API, such as ``request("GET", "/v1/jobs", params={"limit": 5})``."""
        return await (await self.transport()).request(method, path, **options)

    async def health(self) -> Mapping[str, Any]:
        body: Mapping[str, Any] = await self.request("GET", path_of("health"))
        return body

    async def backends(self) -> List[Mapping[str, Any]]:
        """What each backend can do on the daemon's host."""
        body = await self.request("GET", path_of("backends"))
        return list(body["backends"])

    async def sandboxes(
        self, *, labels: Optional[Mapping[str, Optional[str]]] = None, state: Optional[str] = None
    ) -> AsyncIterator[SandboxInfo]:
        """The sandboxes there are, page by page. A label without a value fits every value."""
        wanted = [key if value is None else f"{key}={value}" for key, value in (labels or {}).items()]
        params: Dict[str, Any] = {"label": ",".join(wanted)} if wanted else {}
        if state is not None:
            params["state"] = state
        while True:
            body = await self.request("GET", path_of("sandboxes"), params=params)
            for sandbox in body["sandboxes"]:
                yield SandboxInfo.from_json(sandbox)
            if body["next"] is None:
                return
            params["after"] = body["next"]

    async def create(
        self,
        spec: Mapping[str, Any],
        snapshot: Union[Snapshot, str, None] = None,
        *,
        lifetime: Optional[float] = None,
        idle: Optional[float] = None,
    ) -> SandboxInfo:
        """Makes a sandbox, which lives until it is destroyed or, in seconds, its ``lifetime`` is over or it was not used for
        ``idle``. A caller that is interrupted leaves none."""
        body: Dict[str, Any] = {"spec": spec, **build_life(lifetime, idle)}
        if snapshot is not None:
            body["from"] = snapshot.id if isinstance(snapshot, Snapshot) else snapshot
        key = str(uuid.uuid4())
        transport = await self.transport()
        try:
            made = await transport.request("POST", path_of("sandboxes"), json=body, key=key)
        except StockadeError:
            raise
        except BaseException:
            # By the same key the daemon names what it has made for it, if anything. The interruption is the one to tell.
            with shield(), suppress(StockadeError):
                made = await transport.request("POST", path_of("sandboxes"), json=body, key=key)
                await self.destroy(made["id"])
            raise
        return SandboxInfo.from_json(made)

    async def destroy(self, sandbox: str) -> None:
        """Ends a sandbox and everything in it. One that is not there is no error."""
        try:
            await self.request("DELETE", path_of("sandboxes", sandbox))
        except StockadeError as error:
            if error.code != "not-found":
                raise

    async def execution(self, id: str) -> AsyncExecution:
        """An execution that was started before, by its id."""
        await self.request("GET", path_of("executions", id))
        return AsyncExecution(await self.transport(), id)

    async def jobs(self, **filters: Any) -> AsyncIterator[Mapping[str, Any]]:
        """Records of executions, the latest start first: all, or those that fit ``sandbox``, ``tenant``, ``backend``, ``label``,
        ``outcome``, ``since`` and ``until``."""
        params: Dict[str, Any] = dict(filters)
        while True:
            page = await self.request("GET", path_of("jobs"), params=params)
            for job in page["jobs"]:
                yield job
            if page.get("next") is None:
                return
            params["before"] = page["next"]

    async def snapshots(self) -> List[Snapshot]:
        params: Dict[str, str] = {}
        snapshots: List[Snapshot] = []
        while True:
            page = await self.request("GET", path_of("snapshots"), params=params)
            snapshots.extend(Snapshot.from_json(snapshot) for snapshot in page["snapshots"])
            if page.get("next") is None:
                return snapshots
            params["after"] = page["next"]

    async def delete_snapshot(self, snapshot: Union[Snapshot, str]) -> None:
        id = snapshot.id if isinstance(snapshot, Snapshot) else snapshot
        await self.request("DELETE", path_of("snapshots", id))
