"""What the daemon says, as plain values. Fields that a newer daemon adds are kept in ``raw``."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Union


@dataclass(frozen=True)
class Outcome:
    """How an execution ended."""

    #: ``exited``, ``signalled``, ``start-failed``, ``limit-exceeded``, ``timed-out``, ``cancelled``, ``killed``,
    #: ``refused`` or ``lost``.
    ending: str
    #: The program's own; -1 where it has none.
    exit_code: int
    #: Name of the signal that ended it, such as ``SIGKILL``.
    signal: Optional[str]
    #: Name of the limit that it went beyond.
    limit_exceeded: Optional[str]
    timed_out: bool
    #: Whether output past its limit was dropped.
    truncated: bool
    #: Why the program never ran: ``not-found``, ``not-executable``, ``bad-directory`` …
    start_failure: Optional[str]
    #: The sentence about it.
    detail: Optional[str]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def shell_code(self) -> int:
        """The exit code as a shell reports it: 128 + N for a signal, 127 and 126 for what did not start."""
        if self.ending == "exited":
            return self.exit_code
        if self.signal is not None:
            number = getattr(signals, self.signal, None)
            return 128 + int(number) if number is not None else -1
        return {"not-found": 127, "not-executable": 126}.get(self.start_failure or "", -1)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Outcome:
        failure = body.get("startFailure") or {}
        return cls(
            ending=body["ending"],
            exit_code=body["exitCode"],
            signal=body.get("signal"),
            limit_exceeded=body.get("limitExceeded"),
            timed_out=body["timedOut"],
            truncated=body["truncated"],
            start_failure=failure.get("kind"),
            detail=failure.get("detail") or body.get("lost"),
            raw=body,
        )


@dataclass(frozen=True)
class Output:
    """A piece of what the program wrote. ``seq`` numbers the events of an execution."""

    seq: int
    #: ``stdout`` or ``stderr``.
    stream: str
    data: bytes

    @property
    def text(self) -> str:
        """The piece as text. A character that is cut by the end of the piece is replaced: join bytes for the whole."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Gap:
    """Output that left the daemon's history before it was read."""

    seq: int
    #: How many events are missing.
    missed: int


@dataclass(frozen=True)
class Exit:
    """The last event."""

    seq: int
    outcome: Outcome


Event = Union[Output, Gap, Exit]


@dataclass(frozen=True)
class Result:
    """A command that has ended, with everything that it wrote."""

    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    outcome: Outcome
    #: Events of output that were lost because this client was too slow; ``truncated`` is true then.
    missed: int = 0

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int:
        """The program's own; -1 where it has none, and ``outcome`` says why."""
        return self.outcome.exit_code

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.outcome.ending == "exited" and self.outcome.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.outcome.timed_out

    @property
    def truncated(self) -> bool:
        """Whether output is missing."""
        return self.outcome.truncated or self.missed > 0


@dataclass(frozen=True)
class Entry:
    """What is at a path of a sandbox. A symbolic link is not followed."""

    name: str
    #: ``file``, ``directory``, ``symlink`` or ``other``.
    kind: str
    size: int
    #: Permission bits.
    mode: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Entry:
        return cls(body["name"], body["kind"], body["size"], body["mode"])


@dataclass(frozen=True)
class Snapshot:
    """The stored state of a sandbox."""

    id: str
    tenant: str
    #: ``files``, or ``full`` with memory.
    kind: str
    backend: str
    boundary: str
    taken: str
    size_bytes: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Snapshot:
        names = ("id", "tenant", "kind", "backend", "boundary", "taken", "sizeBytes")
        return cls(*(body[name] for name in names))


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as the daemon describes it."""

    id: str
    tenant: str
    #: ``running``, ``paused`` or ``ended``.
    state: str
    backend: str
    boundary: str
    created: str
    labels: Dict[str, str]
    #: When its lifetime is over, and when it will have been idle for too long unless it is used.
    expires: Optional[str]
    idle_expires: Optional[str]
    #: Why it has ended: ``idle``, ``lifetime``, ``killed``, ``stopped`` or ``lost``.
    end_reason: Optional[str]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SandboxInfo:
        names = ("id", "tenant", "state", "backend", "boundary", "created", "labels")
        ended = body.get("ended") or {}
        times = (body.get("expires"), body.get("idleExpires"), ended.get("reason"))
        return cls(*(body[name] for name in names), *times, body)
