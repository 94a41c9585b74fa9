"""Which daemon to speak to: the one that is named, the one that this user runs, or a private one that ends with
this process. One that is found by itself is never that of another user; one that is named is taken at its word."""

from __future__ import annotations

import atexit
import fcntl
import ipaddress
import json
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Dict, Optional
from urllib.parse import urlsplit

from . import _watchdog
from ._error import StockadeError

#: Longest wait for a private daemon to say where it listens.
START_TIMEOUT_SECONDS = 60.0
#: Longest wait for a private daemon to end: its own timeout is 60 s.
STOP_TIMEOUT_SECONDS = 75.0
#: What is told of the errors of a daemon that does not start.
MAX_STDERR_BYTES = 4096
_SOCKET = Path("api", "stockade.sock")
#: Longest path of a socket that the kernel takes.
_MAX_SOCKET_PATH_BYTES = 107
_BINARY_VARIABLE = "STOCKADE_BIN"
_CA_VARIABLE = "STOCKADE_CA_FILE"
_WATCHDOG = Path(__file__).with_name("_watchdog.py")
_UNIX_SCHEME = "unix:"


@dataclass(frozen=True)
class Address:
    """Where a daemon listens."""

    url: str
    socket_path: Optional[str] = None
    token: Optional[str] = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_url(self.url)


def find_address(host: Optional[str] = None, token: Optional[str] = None) -> Address:
    """The daemon to speak to. May start one, which takes a moment."""
    if host is not None and not host.startswith(_UNIX_SCHEME):
        url = host if "://" in host else f"http://{host}"
        return Address(url.rstrip("/"), token=token)
    if host is not None:
        path = host[len(_UNIX_SCHEME) :]
        return Address("http://localhost", path[2:] if path.startswith("//") else path, token)
    own = state_dir() / _SOCKET
    path = str(own) if _listens(own) else str(_private_daemon())
    return Address("http://localhost", path, token)


def _check_url(url: str) -> None:
    """Fails for what is neither TLS nor on this host: a token would be read on the way."""
    try:
        parts = urlsplit(url)
        bare = not (parts.path or parts.query or parts.fragment or parts.username is not None)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and bare and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        remedy = "give `unix:/PATH`, `http://127.0.0.1:PORT` or `https://HOST[:PORT]`"
        raise StockadeError("invalid", f"{url!r} is not where a daemon listens", remedy)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        remedy = "give `https://HOST` for a daemon with TLS, or lead its port here with `ssh -L`"
        raise StockadeError("invalid", f"traffic to `{parts.hostname}` would not be encrypted", remedy)


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def build_tls_context() -> ssl.SSLContext:
    """Verifies daemons by the authorities that this host trusts, or by those of ``STOCKADE_CA_FILE`` alone."""
    file = os.environ.get(_CA_VARIABLE) or None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        message = f"no certificate can be read from `{file}`: {error}"
        raise StockadeError("invalid", message, f"set {_CA_VARIABLE} to a file of certificates (PEM)") from error


def is_unverified(error: Optional[BaseException]) -> bool:
    """Whether a connection failed because the certificate of its other end was not accepted."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def state_dir() -> Path:
    """The state directory of this user, as the daemon finds it."""
    given = os.environ.get("STOCKADE_STATE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "stockade"


def find_binary() -> str:
    """The program: what ``STOCKADE_BIN`` names, what this package carries, or what is in ``PATH``."""
    carried = Path(__file__).with_name("bin") / "stockade"
    given = os.environ.get(_BINARY_VARIABLE)
    found = given or (str(carried) if carried.exists() else shutil.which("stockade"))
    if not found or not os.access(found, os.X_OK):
        message = f"`{found}` cannot be run" if found else "the program `stockade` is not installed"
        remedy = f"put it into PATH, set {_BINARY_VARIABLE} to its path, or name a daemon with `host`"
        raise StockadeError("unavailable", message, remedy)
    return found


def connectable_path(path: str, directory: Optional[int]) -> str:
    """A path by which a socket can be reached however deep it lies, by the handle of its directory."""
    return path if directory is None else f"/proc/self/fd/{directory}/{os.path.basename(path)}"


def open_directory(path: str) -> Optional[int]:
    """A handle of a socket's directory, where its path is too long for the kernel."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
        return None
    return os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _listens(path: Path) -> bool:
    """Whether a daemon of this user is at a socket. The kernel says whose it is."""
    try:
        directory = open_directory(str(path))
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            probe.connect(connectable_path(str(path), directory))
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, user, _ = struct.unpack("3i", peer)
            return bool(user == os.geteuid())
    except OSError:
        return False
    finally:
        if directory is not None:
            os.close(directory)


class _PrivateDaemon:
    """A daemon of this process alone, with state of its own. A watchdog process ends it and removes its
    state when this process closes its pipe, which the kernel does for one that is killed."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.binary = find_binary()
        self.directory, lock = _make_directory(self.binary)
        # Read by its handle: the watchdog of a daemon that fails removes the directory.
        with open(self.directory / "stderr", "w+b") as errors:
            self.watchdog = self._start_watchdog(lock, errors)
            atexit.register(self.stop)
            try:
                self.socket = self._read_announcement(errors)
            except BaseException:
                self.stop()
                raise

    def _start_watchdog(self, lock: int, errors: IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WATCHDOG), self.binary, str(self.directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                pass_fds=[lock],
            )
        finally:
            os.close(lock)

    def _read_announcement(self, errors: IO[bytes]) -> Path:
        """Waits until the daemon says where it listens; the end of its output says that it failed."""
        assert self.watchdog.stdout is not None
        announced = select.poll()
        announced.register(self.watchdog.stdout, select.POLLIN)
        line = self.watchdog.stdout.readline() if announced.poll(START_TIMEOUT_SECONDS * 1000) else b""
        try:
            return Path(json.loads(line)["socket"])
        except (ValueError, KeyError, TypeError):
            said = os.pread(errors.fileno(), MAX_STDERR_BYTES, 0).decode(errors="replace").strip()
            message = f"the private daemon did not start: {said or 'it said nothing'}"
            remedy = f"run `{self.binary} serve` to see why, or name a daemon with `host`"
            raise StockadeError("unavailable", message, remedy) from None

    def listens(self) -> bool:
        return self.process == os.getpid() and self.watchdog.poll() is None and _listens(self.socket)

    def _close_pipes(self) -> None:
        for pipe in (self.watchdog.stdin, self.watchdog.stdout):
            if pipe is not None:
                pipe.close()

    def stop(self) -> None:
        """Ends it, and waits until nothing is left. A forked child leaves that to its parent."""
        if self.process != os.getpid():
            return
        atexit.unregister(self.stop)
        self._close_pipes()
        # A child that was forked while this started may hold the pipe open.
        self.watchdog.terminate()
        self.watchdog.wait(STOP_TIMEOUT_SECONDS)


_daemons: Dict[int, _PrivateDaemon] = {}
_lock = threading.Lock()


def _forget_daemons() -> None:
    """In a forked child: lets go of the pipes of its parent's daemons, so that they end with the parent."""
    global _lock
    _lock = threading.Lock()
    for daemon in _daemons.values():
        daemon._close_pipes()
    _daemons.clear()


os.register_at_fork(after_in_child=_forget_daemons)


def _private_daemon() -> Path:
    """The socket of the daemon of this process, which is started when it is first needed."""
    with _lock:
        daemon = _daemons.get(os.getpid())
        if daemon is None or not daemon.listens():
            daemon = _daemons[os.getpid()] = _PrivateDaemon()
        return daemon.socket


def _make_directory(binary: str) -> "tuple[Path, int]":
    """A private directory, and its lock: one that is not locked is left from a process that was killed."""
    base = state_dir() / "python"
    _make_private(base)
    _remove_leftovers(binary, base)
    while True:
        made = Path(tempfile.mkdtemp(dir=base))
        lock = _lock_directory(made)
        # Another process may have taken it for a leftover before it was locked.
        if lock is not None and made.exists():
            return made, lock


def _make_private(base: Path) -> None:
    """Makes a directory in the state directory, both for this user alone, whatever the umask and whoever made them."""
    for missing in reversed([one for one in (base, *base.parents) if not one.exists()]):
        try:
            os.mkdir(missing, 0o700)
        except FileExistsError:
            pass
    for one in (base.parent, base):
        os.chmod(one, 0o700)


def _remove_leftovers(binary: str, base: Path) -> None:
    for left in base.iterdir():
        lock = _lock_directory(left)
        if lock is not None:
            _watchdog.reap(binary, _watchdog.build_environment(str(left)))
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _lock_directory(path: Path) -> Optional[int]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError:
        os.close(handle)
        return None
