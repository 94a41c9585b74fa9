"""Errors about files of a sandbox as the builtin ones, for frameworks that expect those. Decided by codes and by what is
at the path, never by text."""

from __future__ import annotations

import errno
import os

from ._async.files import AsyncFiles
from ._error import StockadeError


async def to_os_error(files: AsyncFiles, error: StockadeError, path: str) -> Exception:
    """The builtin error for one about a path; the error itself where there is none."""
    number = {
        "not-found": errno.ENOENT,
        "denied": errno.EACCES,
        "path-escapes": errno.EACCES,
        "too-large": errno.EFBIG,
        "too-slow": errno.ETIMEDOUT,
    }.get(error.code)
    if error.code == "invalid":
        number = await _find_reason(files, path)
    return error if number is None else OSError(number, os.strerror(number), path)


async def _find_reason(files: AsyncFiles, path: str) -> int:
    """Why an operation on a path is invalid, by what is there."""
    try:
        kind = (await files.stat(path)).kind
    except StockadeError as error:
        # A path beneath a file is invalid as well.
        return errno.ENOTDIR if error.code == "invalid" else errno.EINVAL
    return {"directory": errno.EISDIR, "file": errno.ENOTDIR, "symlink": errno.ELOOP}.get(kind, errno.EINVAL)
