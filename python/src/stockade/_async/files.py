"""Files of a sandbox. Absolute paths name its own tree; relative ones begin at its workspace."""

from __future__ import annotations

from typing import Any, AsyncIterator, List, Optional

from .._model import Entry
from .concurrency import AsyncContent, iter_content
from .transport import AsyncTransport, path_of

#: What the daemon gives of a file at once.
PART_BYTES = 1 << 20


class AsyncFiles:
    """Files of one sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = path_of("sandboxes", sandbox, "files")

    async def read(self, path: str) -> bytes:
        """A regular file, whole."""
        pieces = [piece async for piece in self.stream(path)]
        return b"".join(pieces)

    async def read_part(self, path: str, offset: int, length: int) -> bytes:
        """At most this many bytes of a regular file; fewer only at its end."""
        part = b""
        while len(part) < length:
            wanted = {"path": path, "offset": offset + len(part), "length": min(length - len(part), PART_BYTES)}
            pieces = [piece async for piece in self._transport.download(f"{self._path}/part", wanted)]
            if not any(pieces):
                break
            part += b"".join(pieces)
        return part

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode()

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """A regular file in pieces."""
        async for piece in self._transport.download(self._path, {"path": path}):
            yield piece

    async def write(self, path: str, content: AsyncContent, *, mode: Optional[int] = None, parents: bool = False) -> Entry:
        """Writes a regular file, replacing what was there, and makes the directories above it with ``parents``.
        A file object or an iterator is sent in pieces."""
        if parents:
            await self.make_directory(path.rpartition("/")[0] or "/" if "/" in path else ".")
        params = {"path": path} if mode is None else {"path": path, "mode": f"{mode:o}"}
        body: Any = content if isinstance(content, bytes) else iter_content(content)
        return Entry.from_json(await self._transport.request("PUT", self._path, params=params, content=body))

    async def list(self, path: str = ".") -> List[Entry]:
        """What is in a directory, by name."""
        return [entry async for entry in self.scan(path)]

    async def scan(self, path: str = ".") -> AsyncIterator[Entry]:
        """What is in a directory, by name, page by page: a program may have made more than fits into memory."""
        params = {"path": path}
        while True:
            page = await self._transport.request("GET", f"{self._path}/list", params=params)
            for entry in page["entries"]:
                yield Entry.from_json(entry)
            if page.get("next") is None:
                return
            params["after"] = page["next"]

    async def stat(self, path: str) -> Entry:
        """What is at a path. A symbolic link is not followed."""
        return Entry.from_json(await self._transport.request("GET", f"{self._path}/stat", params={"path": path}))

    async def remove(self, path: str) -> None:
        """Removes a file, or a directory with everything in it. What is not there is no error."""
        await self._transport.request("DELETE", self._path, params={"path": path})

    async def move(self, source: str, target: str) -> None:
        """Moves within the sandbox, replacing a file that is in the way."""
        await self._transport.request("POST", f"{self._path}/move", json={"from": source, "to": target})

    async def make_directory(self, path: str) -> None:
        """Makes a directory and those above it. One that is there is no error."""
        await self._transport.request("POST", f"{self._path}/directory", json={"path": path})
