"""Specs and commands as the API takes them, from what is comfortable in Python."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional, Sequence, Union

Limits = Mapping[str, Union[str, int]]
Network = Union[str, Sequence[str], Mapping[str, Any]]
Command = Union[str, Sequence[str]]


def build_spec(
    *,
    image: Union[str, Mapping[str, Any], None] = None,
    workspace: Union[str, "os.PathLike[str]", Mapping[str, Any], None] = None,
    env: Optional[Mapping[str, str]] = None,
    network: Optional[Network] = None,
    limits: Optional[Limits] = None,
    backend: Optional[str] = None,
    labels: Optional[Mapping[str, str]] = None,
    spec: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """The body of ``spec``; fields of ``spec`` are sent as they are, the others over them."""
    given: Dict[str, Any] = {
        "image": {"named": image} if isinstance(image, str) else image,
        "workspace": _workspace(workspace),
        "env": env,
        "network": network if isinstance(network, (str, Mapping, type(None))) else {"egress": list(network)},
        "limits": limits,
        "backend": backend,
        "labels": labels,
    }
    return {**(spec or {}), **{name: value for name, value in given.items() if value is not None}}


def _workspace(given: Union[str, "os.PathLike[str]", Mapping[str, Any], None]) -> Any:
    if given is None or isinstance(given, Mapping):
        return given
    return {"local": os.path.abspath(os.fspath(given))}


def build_command(
    command: Command,
    *,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    user: Optional[str] = None,
    timeout: Optional[float] = None,
    max_output: Union[str, int, None] = None,
    stdin: bool = False,
    terminal: Optional[Sequence[int]] = None,
) -> Dict[str, Any]:
    """The body of a command. A string is run by the shell, a sequence as it is."""
    run = {"shell": command} if isinstance(command, str) else {"program": list(command)}
    given: Dict[str, Any] = {
        "env": env,
        "dir": cwd,
        "user": user,
        "wallTime": None if timeout is None else format_seconds(timeout),
        "output": None if max_output is None else str(max_output),
        "stdin": "stream" if stdin else None,
        "terminal": None if terminal is None else {"rows": terminal[0], "cols": terminal[1]},
    }
    return {"run": run, **{name: value for name, value in given.items() if value is not None}}


def build_life(lifetime: Optional[float], idle: Optional[float]) -> Dict[str, str]:
    """How long a sandbox lives, as the API takes it."""
    given = {"lifetime": lifetime, "idle": idle}
    return {name: format_seconds(seconds) for name, seconds in given.items() if seconds is not None}


def format_seconds(seconds: float) -> str:
    """A duration in the API's notation: at least one millisecond, since nothing runs in none."""
    if not seconds > 0:
        raise ValueError("a time must be positive")
    return f"{max(1, round(seconds * 1000))}ms"
