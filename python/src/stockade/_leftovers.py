"""Sandboxes of this process that are open, ended when the interpreter exits. One that is killed ends none: those
on a private daemon end with it, those on another one stay until they are destroyed."""

from __future__ import annotations

import atexit
import os
from typing import Dict, Tuple

from ._daemon import Address

_open: Dict[str, Tuple[Address, int]] = {}


def remember_sandbox(sandbox: str, address: Address) -> None:
    _open[sandbox] = (address, os.getpid())


def forget_sandbox(sandbox: str) -> None:
    _open.pop(sandbox, None)


@atexit.register
def _destroy_open_sandboxes() -> None:
    # A forked child does not end what its parent has made.
    own = [(sandbox, address) for sandbox, (address, process) in list(_open.items()) if process == os.getpid()]
    if not own:
        return
    from ._error import StockadeError
    from ._sync.client import Client

    for sandbox, address in own:
        try:
            with Client(address=address) as client:
                client.destroy(sandbox)
        except StockadeError:
            pass
