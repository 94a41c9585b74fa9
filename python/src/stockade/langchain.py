"""A Stockade sandbox as the backend of a deep agent::

    from deepagents import create_deep_agent
    from stockade.langchain import StockadeSandbox

    with StockadeSandbox() as backend:
        agent = create_deep_agent(model=..., backend=backend)

Its image needs a POSIX shell and ``python3``, by which deepagents edits and searches files.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from . import Output, Sandbox, StockadeError
from ._explain import explain_end

#: Exit code of a command whose time ran out, as `timeout` has it.
TIMED_OUT_EXIT_CODE = 124


class StockadeSandbox(BaseSandbox):
    """Runs the commands of an agent in a sandbox: one that is given and stays the caller's, or one of its own,
    made from the arguments of :class:`stockade.Sandbox` and gone when this is closed."""

    def __init__(self, sandbox: Optional[Sandbox] = None, *, timeout: Optional[float] = None, **spec: Any) -> None:
        self._owns_sandbox = sandbox is None
        self._timeout = timeout
        self.sandbox = (sandbox or Sandbox(**spec)).open()

    def __enter__(self) -> StockadeSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the sandbox, unless it was given."""
        if self._owns_sandbox:
            self.sandbox.close()

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Runs a command; its two streams are one, in the order in which they were written."""
        pieces: List[bytes] = []

        def collect(output: Output) -> None:
            pieces.append(output.data)

        result = self.sandbox.run(command, timeout=timeout or self._timeout, on_output=collect)
        output = b"".join(pieces).decode("utf-8", "replace") + explain_end(result)
        code = TIMED_OUT_EXIT_CODE if result.timed_out else result.outcome.shell_code
        return ExecuteResponse(output=output, exit_code=code, truncated=result.truncated)

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> Optional[str]:
        if not path.startswith("/"):
            return INVALID_PATH
        try:
            self.sandbox.files.write(path, content, parents=True)
        except StockadeError as error:
            return self._name_error(error, path)
        return None

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error=INVALID_PATH)
        try:
            return FileDownloadResponse(path=path, content=self.sandbox.files.read(path))
        except StockadeError as error:
            return FileDownloadResponse(path=path, error=self._name_error(error, path))

    def _name_error(self, error: StockadeError, path: str) -> str:
        """The framework's name of an error, by its code and by what is at the path."""
        if error.code == "invalid":
            return IS_DIRECTORY if self._is_directory(path) else INVALID_PATH
        names = {"not-found": FILE_NOT_FOUND, "denied": PERMISSION_DENIED, "path-escapes": INVALID_PATH}
        return names.get(error.code, str(error))

    def _is_directory(self, path: str) -> bool:
        try:
            return self.sandbox.files.stat(path).kind == "directory"
        except StockadeError:
            return False
