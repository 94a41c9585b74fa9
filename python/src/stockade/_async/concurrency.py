"""What differs between this half and the synchronous one, which is generated from it: waiting, locks, cancellation."""

from __future__ import annotations

from typing import IO, Any, AsyncIterable, AsyncIterator, Callable, ContextManager, Iterable, TypeVar, Union

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")

#: What a file is written from.
AsyncContent = Union[bytes, str, IO[bytes], Iterable[bytes], AsyncIterable[bytes]]
Lock = anyio.Lock

#: Longest time for cleaning up behind a caller that was cancelled.
CLEANUP_TIMEOUT_SECONDS = 30.0
#: Piece in which files of the host are read.
CHUNK_BYTES = 1 << 18


def shield() -> ContextManager[Any]:
    """Work that is carried out although the caller was cancelled, within a timeout."""
    return anyio.move_on_after(CLEANUP_TIMEOUT_SECONDS, shield=True)


_loop_marker: "RunVar[object]" = RunVar("stockade_loop")


def current_loop() -> object:
    """What tells this event loop from others."""
    try:
        return _loop_marker.get()
    except LookupError:
        marker = object()
        _loop_marker.set(marker)
        return marker


async def sleep(seconds: float) -> None:
    await anyio.sleep(seconds)


async def in_thread(work: Callable[[], T]) -> T:
    """Blocking work beside the event loop."""
    return await anyio.to_thread.run_sync(work)


async def iter_content(content: AsyncContent) -> AsyncIterator[bytes]:
    """The pieces of what is written to a file."""
    if isinstance(content, str):
        yield content.encode()
    elif isinstance(content, bytes):
        yield content
    elif hasattr(content, "read"):
        while piece := await in_thread(lambda: content.read(CHUNK_BYTES)):
            yield piece
    elif hasattr(content, "__aiter__"):
        async for piece in content:
            yield piece
    else:
        for piece in content:
            yield piece
