"""The one exception of this package. Programs decide by its code, never by its text."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional


class StockadeError(Exception):
    """What is wrong, with a stable code and what to do about it.

    Codes are those of the daemon (``invalid``, ``refused``, ``not-found``, ``denied``, ``quota-exceeded``,
    ``too-slow`` …). Two come from this package as well: ``unavailable`` where no daemon can be reached or started,
    and ``protocol`` where an answer is not one of Stockade's.
    """

    def __init__(
        self,
        code: str,
        message: str,
        remedy: Optional[str] = None,
        refusals: Optional[List[Mapping[str, Any]]] = None,
    ) -> None:
        super().__init__(code, message, remedy, refusals)
        self.code = code
        self.message = message
        self.remedy = remedy
        #: Everything that cannot be enforced, where a spec or command was not admitted.
        self.refusals = refusals or []

    def __str__(self) -> str:
        remedy = f" (remedy: {self.remedy})" if self.remedy else ""
        return f"{self.code}: {self.message}{remedy}"

    @classmethod
    def from_body(cls, status: int, body: Any) -> StockadeError:
        """Reads the body of an answer that is no success."""
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("code"), str):
            remedy = "check that `host` is a Stockade daemon"
            return cls("protocol", f"the server answered with status {status}", remedy)
        message = str(error.get("message", ""))
        return cls(error["code"], message, error.get("remedy"), error.get("refusals"))
