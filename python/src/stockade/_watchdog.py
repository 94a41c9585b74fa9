"""Runs a private daemon for as long as the process that started it lives, then ends it and removes its state.

Run as a program of its own: ``_watchdog.py BINARY DIRECTORY``, with a pipe from that process as standard input and the
lock of the directory as an inherited descriptor. It imports nothing of the package."""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

#: The daemon gives itself 60 s.
STOP_TIMEOUT_SECONDS = 70
REAP_TIMEOUT_SECONDS = 30
_PR_SET_PDEATHSIG = 1
#: Variables that name another daemon: this one builds its own sandboxes.
_ELSEWHERE = ("STOCKADE_HOST", "STOCKADE_TOKEN_FILE", "STOCKADE_CA_FILE")


def main(binary: str, directory: str) -> int:
    ending = wake_on_termination()
    environment = build_environment(directory)
    daemon = subprocess.Popen(
        [binary, "serve", "--json"],
        stdin=subprocess.DEVNULL,
        env=environment,
        preexec_fn=end_with_parent,
    )
    # The reader of its announcement must see the end of the pipe if the daemon dies.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    wait_for_end(ending)
    if stop(daemon) != 0:
        reap(binary, environment)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def build_environment(directory: str) -> "dict[str, str]":
    """The environment of a program that builds its own sandboxes and keeps its state in this directory."""
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    environment["STOCKADE_STATE_DIR"] = directory
    return environment


def end_with_parent() -> None:
    """In the daemon: asks the kernel to end it, in its own orderly way, if this watchdog is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def wake_on_termination() -> int:
    """A descriptor that becomes readable when this process is asked to end, or its child has ended."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def wait_for_end(ending: int) -> None:
    """Waits until the owner is gone, the daemon is gone, or this process is asked to end."""
    select.select([sys.stdin.fileno(), ending], [], [])


def stop(daemon: "subprocess.Popen[bytes]") -> int:
    """Ends the daemon with its sandboxes, and returns its exit code."""
    if daemon.poll() is None:
        daemon.terminate()
    try:
        return daemon.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        return daemon.wait()


def reap(binary: str, environment: "dict[str, str]") -> None:
    """Destroys what a daemon left that was killed: every engine that starts does so first."""
    try:
        subprocess.run(
            [binary, "ps"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            timeout=REAP_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
