"""Lines for a model, about what the output of its command does not show."""

from __future__ import annotations

from ._model import Result


def explain_end(result: Result) -> str:
    """A line where a command did not end by itself."""
    outcome = result.outcome
    if outcome.ending in ("exited", "signalled"):
        return ""
    reason = outcome.limit_exceeded or outcome.detail
    return f"\n[{outcome.ending}: {reason}]\n" if reason else f"\n[{outcome.ending}]\n"


def explain_missing(result: Result) -> str:
    """A line where output is missing."""
    return "\n[output is missing: there was too much of it]\n" if result.truncated else ""
