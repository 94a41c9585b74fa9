"""What differs between this half and the asynchronous one, from which it is generated. This file is not."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import IO, Any, Callable, ContextManager, Iterable, Iterator, TypeVar, Union

T = TypeVar("T")

#: What a file is written from.
Content = Union[bytes, str, IO[bytes], Iterable[bytes]]
Lock = threading.Lock

#: Piece in which files of the host are read.
CHUNK_BYTES = 1 << 18

sleep = time.sleep


def shield() -> ContextManager[Any]:
    return contextlib.nullcontext()


def current_loop() -> object:
    """Connections of this half belong to no event loop."""
    return None


def in_thread(work: Callable[[], T]) -> T:
    return work()


def iter_content(content: Content) -> Iterator[bytes]:
    """The pieces of what is written to a file."""
    if isinstance(content, str):
        yield content.encode()
    elif isinstance(content, bytes):
        yield content
    elif hasattr(content, "read"):
        while piece := content.read(CHUNK_BYTES):
            yield piece
    else:
        yield from content
