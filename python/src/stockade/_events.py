"""Server-sent events, read from bytes without any input or output of its own."""

from __future__ import annotations

import base64
import json
from typing import Iterator, List, Optional

from ._error import StockadeError
from ._model import Event, Exit, Gap, Outcome, Output

#: The longest line that is taken. An event of the daemon is far shorter.
MAX_LINE_BYTES = 16 << 20


class EventParser:
    """Takes bytes in, gives events out, and knows the number that is wanted next."""

    def __init__(self, start: int = 0) -> None:
        self.next_seq = start
        #: How many events and comments came whole.
        self.taken = 0
        self.restart()

    def restart(self) -> None:
        """Forgets half an event: its connection is gone, and it comes whole on the next."""
        self._rest = b""
        self._begin_event()

    def _begin_event(self) -> None:
        self._seq = self.next_seq
        self._kind = ""
        self._data: List[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Events that are complete with this piece."""
        # Only at line feeds: text of the guest holds whatever else counts as the end of a line.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise StockadeError("protocol", f"an event has more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            event = self._take_line(line.decode())
            if event is not None:
                yield event

    def _take_line(self, line: str) -> Optional[Event]:
        if not line:
            return self._finish()
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "id":
            self._seq = int(value)
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None

    def _finish(self) -> Optional[Event]:
        """Ends the event at an empty line; comments that keep the connection alive are none."""
        self.taken += 1
        event = read_event(self._seq, self._kind, "\n".join(self._data)) if self._kind else None
        if event is not None:
            self.next_seq = self._seq + 1
        self._begin_event()
        return event


def read_event(seq: int, kind: str, data: str) -> Optional[Event]:
    """One event; nothing for a kind that is not known here."""
    try:
        body = json.loads(data)
        if kind in ("stdout", "stderr"):
            text = body.get("text")
            piece = text.encode() if text is not None else base64.b64decode(body["base64"])
            return Output(seq, kind, piece)
        if kind == "gap":
            return Gap(seq, body["missed"])
        return Exit(seq, Outcome.from_json(body)) if kind == "exit" else None
    except (ValueError, KeyError, AttributeError) as error:
        raise StockadeError("protocol", f"event {seq} is not one of Stockade's") from error
