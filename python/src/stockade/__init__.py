"""Sandboxes for code that nobody vouches for::

    from stockade import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("echo hi").stdout)

The names with ``Async`` do the same with ``await``. See docs/python.md.
"""

from typing import TYPE_CHECKING, Any

from ._error import StockadeError
from ._model import Entry, Event, Exit, Gap, Outcome, Output, Result, SandboxInfo, Snapshot
from ._sync.client import Client
from ._sync.execution import Execution
from ._sync.files import Files
from ._sync.sandbox import Sandbox

if TYPE_CHECKING:
    from ._async.client import AsyncClient
    from ._async.execution import AsyncExecution
    from ._async.files import AsyncFiles
    from ._async.sandbox import AsyncSandbox

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncExecution",
    "AsyncFiles",
    "AsyncSandbox",
    "Client",
    "Entry",
    "Event",
    "Execution",
    "Exit",
    "Files",
    "Gap",
    "Outcome",
    "Output",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "Snapshot",
    "StockadeError",
]


def __getattr__(name: str) -> Any:
    # The asynchronous half is loaded when it is first used: a program that does not use it starts sooner.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("._async." + name[len("Async") :].lower(), __name__), name)
