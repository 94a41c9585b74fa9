"""Requests to the daemon: repeated where that is safe, with errors as the one exception."""

from __future__ import annotations

import os
import ssl
from typing import Any, AsyncIterator, Mapping, Optional, Union
from urllib.parse import quote

import httpx

from .._daemon import Address, build_tls_context, connectable_path, is_unverified, open_directory
from .._error import StockadeError
from .._events import EventParser
from .._model import Event, Exit
from .concurrency import current_loop, sleep

#: Each operation of the daemon has a deadline of its own; this one is for a daemon that hangs.
REQUEST_TIMEOUT_SECONDS = 600.0
CONNECT_TIMEOUT_SECONDS = 10.0
#: The daemon sends a comment every 15 s, so that silence for this long is a lost connection.
EVENTS_TIMEOUT_SECONDS = 45.0
#: Shorter than what the daemon keeps an idle connection for.
KEEP_ALIVE_SECONDS = 5.0
#: Waits before a request is repeated.
RETRY_DELAYS_SECONDS = (0.1, 0.3, 1.0)
#: Waits before a stream of events is taken up again; together about a minute.
RESUME_DELAYS_SECONDS = (0.0, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0, 20.0)
_REPEATABLE_METHODS = ("GET", "DELETE")


class AsyncTransport:
    """Connections to one daemon."""

    def __init__(self, address: Address) -> None:
        self.address = address
        path = address.socket_path
        try:
            self._directory = open_directory(path) if path else None
        except OSError as error:
            raise self._lost(error) from error
        self._owned = (self._owner(), self._make_http())

    @property
    def _http(self) -> httpx.AsyncClient:
        """The connections of this process and event loop: on those that a forked child has inherited, or that were
        made in a loop that has ended, answers go astray."""
        owner, http = self._owned
        if owner != self._owner():
            self._owned = owner, http = self._owner(), self._make_http()
        return http

    def _owner(self) -> object:
        return (os.getpid(), current_loop())

    def _make_http(self) -> httpx.AsyncClient:
        address = self.address
        path = address.socket_path
        # Reading the certificates takes longer than a request, and only https needs them.
        is_plain = httpx.URL(address.url).scheme == "http"
        verify: Union[ssl.SSLContext, bool] = False if is_plain else build_tls_context()
        transport = httpx.AsyncHTTPTransport(
            uds=connectable_path(path, self._directory) if path else None,
            verify=verify,
            limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS),
        )
        headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        timeout = httpx.Timeout(REQUEST_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        return httpx.AsyncClient(transport=transport, base_url=address.url, headers=headers, timeout=timeout)

    async def close(self) -> None:
        await self._http.aclose()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: Any = None,
        params: Optional[Mapping[str, Any]] = None,
        key: Optional[str] = None,
    ) -> Any:
        """The answer's JSON. Repeated after a lost connection where the daemon does the work once: by its
        method, or by an idempotency key."""
        repeatable = method in _REPEATABLE_METHODS or key is not None
        headers = {"Idempotency-Key": key} if key else None
        delays = iter(RETRY_DELAYS_SECONDS)
        while True:
            try:
                response = await self._http.request(
                    method, path, json=json, content=content, params=params, headers=headers
                )
                return read_answer(response)
            except httpx.TransportError as error:
                delay = next(delays, None) if repeatable else None
                if delay is None or self._is_gone(error):
                    raise self._lost(error) from error
                await sleep(delay)

    async def download(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """A body in pieces, never whole in memory."""
        try:
            async with self._http.stream("GET", path, params=params) as response:
                await check_stream(response)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.TransportError as error:
            raise self._lost(error) from error

    async def events(self, path: str, start: int = 0) -> AsyncIterator[Event]:
        """Events up to the last one. A lost connection is taken up again behind the last event that came."""
        parser = EventParser(start)
        delays = iter(RESUME_DELAYS_SECONDS)
        while True:
            lost: Optional[httpx.TransportError] = None
            taken = parser.taken
            try:
                async with self._open_events(path, parser) as response:
                    await check_stream(response)
                    async for chunk in response.aiter_bytes():
                        for event in parser.feed(chunk):
                            yield event
                            if isinstance(event, Exit):
                                return
            except httpx.TransportError as error:
                lost = error
            if parser.taken > taken:
                delays = iter(RESUME_DELAYS_SECONDS)
            delay = next(delays, None)
            if delay is None or (lost is not None and self._is_gone(lost)):
                raise self._lost(lost) from lost
            parser.restart()
            await sleep(delay)

    def _open_events(self, path: str, parser: EventParser) -> Any:
        timeout = httpx.Timeout(EVENTS_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        return self._http.stream("GET", path, params={"from": parser.next_seq}, timeout=timeout)

    def _is_gone(self, error: httpx.TransportError) -> bool:
        """Whether repeating is no help: there is no daemon any more, with which its sandboxes end, or another host
        is in its place."""
        is_ended = self.address.socket_path is not None and isinstance(error, httpx.ConnectError)
        return is_ended or is_unverified(error)

    def _lost(self, error: Optional[Exception]) -> StockadeError:
        where = self.address.socket_path or self.address.url
        reason = str(error) or type(error).__name__ if error else "it ends its answers too early"
        if is_unverified(error):
            remedy = "use a name that it is for, or set STOCKADE_CA_FILE to the certificate of its authority"
            return StockadeError("unavailable", f"the certificate of `{where}` is not accepted: {reason}", remedy)
        message = f"the daemon at `{where}` cannot be reached: {reason}"
        return StockadeError("unavailable", message, "check that it runs; its sandboxes end with it")


def read_answer(response: httpx.Response) -> Any:
    """The JSON of an answer, if it is a success."""
    try:
        body = response.json() if response.content else None
    except ValueError:
        body = None
    if not response.is_success:
        raise StockadeError.from_body(response.status_code, body)
    return body


async def check_stream(response: httpx.Response) -> None:
    """Fails with what a stream's daemon said instead of it."""
    if not response.is_success:
        await response.aread()
        read_answer(response)


def path_of(*parts: str) -> str:
    """A path of the API; no part leads out of its place."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
