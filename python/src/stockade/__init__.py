"""Sandboxes for code that nobody vouches for::

    from stockade import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("echo hi").stdout)

The names with ``Async`` do the same with ``await``. See docs/python.md.
"""

from ._async.client import AsyncClient
from ._async.execution import AsyncExecution
from ._async.files import AsyncFiles
from ._async.sandbox import AsyncSandbox
from ._error import StockadeError
from ._model import Entry, Event, Exit, Gap, Outcome, Output, Result, SandboxInfo, Snapshot
from ._sync.client import Client
from ._sync.execution import Execution
from ._sync.files import Files
from ._sync.sandbox import Sandbox

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
