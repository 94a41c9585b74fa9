"""Executions: read, fed, signalled and cancelled. One outlives the connection that started it."""

from __future__ import annotations

from typing import Any, AsyncIterator, Callable, List, Mapping, Optional, Union

from .._error import StockadeError
from .._model import Event, Exit, Gap, Outcome, Output, Result
from .concurrency import shield
from .transport import AsyncTransport, path_of

#: Input that is sent at once; a body has at most 1 MiB.
INPUT_CHUNK_BYTES = 1 << 19


class AsyncExecution:
    """One command of a sandbox."""

    def __init__(self, transport: AsyncTransport, id: str) -> None:
        self._transport = transport
        self.id = id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r})"

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    async def events(self, start: int = 0) -> AsyncIterator[Event]:
        """Output as it comes, and the end. Begins with the number ``start``; a lost connection is taken up again."""
        async for event in self._transport.events(path_of("executions", self.id, "events"), start):
            yield event

    async def wait(self, on_output: Optional[Callable[[Output], Any]] = None) -> Result:
        """Everything that was written from the beginning on, and how it ended."""
        streams: Mapping[str, List[bytes]] = {"stdout": [], "stderr": []}
        missed = 0
        async for event in self.events():
            if isinstance(event, Output):
                streams[event.stream].append(event.data)
                if on_output is not None:
                    on_output(event)
            elif isinstance(event, Gap):
                missed += event.missed
            elif isinstance(event, Exit):
                return _result(streams, event.outcome, missed)
        raise StockadeError("protocol", "the events ended without the exit")

    async def write(self, data: Union[bytes, str], *, end: bool = False) -> None:
        """Feeds the program input; with ``end`` no more follows. Its command was started with ``stdin=True``."""
        data = data.encode() if isinstance(data, str) else data
        pieces = range(0, len(data), INPUT_CHUNK_BYTES)
        for at in pieces[:-1]:
            await self._send_input(data[at : at + INPUT_CHUNK_BYTES], False)
        await self._send_input(data[pieces[-1] :] if pieces else b"", end)

    async def _send_input(self, data: bytes, end: bool) -> None:
        params = {"end": "true"} if end else None
        await self._transport.request("POST", path_of("executions", self.id, "input"), content=data, params=params)

    async def signal(self, name: str) -> None:
        """Sends a signal such as ``TERM`` to the program and its descendants."""
        await self._transport.request("POST", path_of("executions", self.id, "signal"), json={"signal": name})

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of the program's terminal."""
        size = {"rows": rows, "cols": cols}
        await self._transport.request("POST", path_of("executions", self.id, "resize"), json=size)

    async def cancel(self) -> None:
        """Ends every process of the execution. Answers at once, and again for one that has ended."""
        await self._transport.request("POST", path_of("executions", self.id, "cancel"))

    async def outcome(self) -> Optional[Outcome]:
        """How it ended; nothing while it runs."""
        body = await self._transport.request("GET", path_of("executions", self.id))
        return Outcome.from_json(body["outcome"]) if body.get("outcome") else None

    async def finish(self, input: Union[bytes, str, None], on_output: Optional[Callable[[Output], Any]]) -> Result:
        """Feeds it, waits for its end, and ends it if the caller does not wait any longer."""
        try:
            if input is not None:
                await self.write(input, end=True)
            return await self.wait(on_output)
        except BaseException:
            with shield():
                await self._cancel_quietly()
            raise

    async def _cancel_quietly(self) -> None:
        try:
            await self.cancel()
        except StockadeError:
            # The first error is the one to tell.
            pass


def _result(streams: Mapping[str, List[bytes]], outcome: Outcome, missed: int) -> Result:
    return Result(b"".join(streams["stdout"]), b"".join(streams["stderr"]), outcome, missed)
