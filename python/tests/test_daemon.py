"""The private daemon: started by itself, and gone with its process however that ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FIVE_LINES = """
from stockade import Sandbox

with Sandbox() as sandbox:
    print(sandbox.run("echo hi").stdout)
"""
HELD = """
import os, sys
from stockade import Sandbox, _daemon

sandbox = Sandbox().open()
if "fork" in sys.argv and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
sandbox.start("sleep 1000")
[daemon] = _daemon._daemons.values()
print(daemon.directory, daemon.watchdog.pid, flush=True)
sys.stdin.read()
"""
INTERRUPTED = """
import os, signal, sys
from stockade import Sandbox

# A shell lets what it runs in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    Sandbox().open()
except KeyboardInterrupt:
    print(os.listdir(os.path.join(sys.argv[1], "python")))
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOCKADE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def wait_until_removed(directory: Path) -> None:
    """Waits for the lock, which the watchdog holds to its end; there is nothing to wait for where it has gone."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.close(handle)
    assert not directory.exists()


def start_holder(*arguments: str) -> "tuple[subprocess.Popen[str], Path, int]":
    holder = subprocess.Popen(
        [sys.executable, "-c", HELD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    directory, watchdog = holder.stdout.readline().split()
    return holder, Path(directory), int(watchdog)


def processes_of(directory: Path) -> list[str]:
    """Command lines of processes that have the directory as their state."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(f"STOCKADE_STATE_DIR={directory}") in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_five_lines_suffice_and_leave_nothing(state: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FIVE_LINES], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("hi\n\n", "")
    assert list((state / "python").iterdir()) == []


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None])
def test_it_ends_with_its_process_however_that_ends(state: Path, ending: "signal.Signals | None") -> None:
    holder, directory, _ = start_holder()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert processes_of(directory)
    if ending is None:
        holder.communicate()
    else:
        holder.send_signal(ending)
        holder.wait()
    wait_until_removed(directory)
    assert processes_of(directory) == []


def test_it_ends_with_its_process_though_a_forked_child_lives(state: Path) -> None:
    holder, directory, _ = start_holder("fork")
    holder.kill()
    holder.wait()
    wait_until_removed(directory)
    assert processes_of(directory) == []
    holder.communicate()


def test_ctrl_c_while_it_starts_leaves_nothing(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes on, such as a notebook, has no half-started daemon beside it."""
    fifo, program = tmp_path / "fifo", tmp_path / "program"
    os.mkfifo(fifo)
    program.write_text(f"#!/bin/sh\n[ $1 = serve ] || exit 0\necho started >{fifo}\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setenv("STOCKADE_BIN", str(program))
    starting = subprocess.Popen([sys.executable, "-c", INTERRUPTED, state], stdout=subprocess.PIPE, text=True)
    assert fifo.read_text() == "started\n"
    starting.send_signal(signal.SIGINT)
    assert starting.communicate()[0] == "[]\n"


def test_an_exit_without_a_with_is_quiet_however_deep_the_state_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCKADE_STATE_DIR", str(tmp_path / ("x" * 120)))
    code = "import stockade; stockade.Sandbox().open()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_closing_again_starts_no_other(state: Path) -> None:
    code = """
from stockade import Sandbox, _daemon

sandbox = Sandbox().open()
sandbox.close()
[daemon] = _daemon._daemons.values()
daemon.stop()
sandbox.close()
assert [daemon] == list(_daemon._daemons.values())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_ends_if_its_watchdog_is_killed_and_the_next_one_sweeps(state: Path) -> None:
    holder, directory, watchdog = start_holder()
    os.kill(watchdog, signal.SIGKILL)
    # The daemon holds the lock too, so that its end can be waited for.
    handle = os.open(directory / "api" / "lock", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.close(handle)
    holder.communicate()
    subprocess.run([sys.executable, "-c", FIVE_LINES], check=True, capture_output=True)
    assert not directory.exists()


def test_what_a_killed_daemon_left_is_reaped(state: Path) -> None:
    holder, directory, watchdog = start_holder()
    [daemon] = map(int, Path(f"/proc/{watchdog}/task/{watchdog}/children").read_text().split())
    os.kill(daemon, signal.SIGKILL)
    wait_until_removed(directory)
    assert processes_of(directory) == []
    holder.communicate()


def test_what_a_killed_daemon_without_its_watchdog_left_is_reaped_by_the_next_one(state: Path) -> None:
    holder, directory, watchdog = start_holder()
    [daemon] = map(int, Path(f"/proc/{watchdog}/task/{watchdog}/children").read_text().split())
    os.kill(watchdog, signal.SIGSTOP)
    os.kill(daemon, signal.SIGKILL)
    os.kill(watchdog, signal.SIGKILL)
    holder.communicate()
    assert list((directory / "leases").iterdir()) != []
    subprocess.run([sys.executable, "-c", FIVE_LINES], check=True, capture_output=True)
    assert not directory.exists()
    assert processes_of(directory) == []


def test_a_daemon_of_the_user_is_used(daemon: str, client) -> None:
    code = "import stockade; print(stockade.Client().transport().address.socket_path)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == daemon


def test_sandboxes_on_a_daemon_end_at_exit_without_a_with(daemon: str, client) -> None:
    code = "import stockade; stockade.Sandbox().open()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(client.sandboxes()) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_its_state_is_this_users_alone_whatever_the_umask(state: Path, is_there: bool) -> None:
    from stockade import _daemon

    umask = os.umask(0)
    try:
        if is_there:
            (state / "python").mkdir(parents=True)
        made, lock = _daemon._make_directory("/nowhere/stockade")
    finally:
        os.umask(umask)
    os.close(lock)
    assert [oct(one.stat().st_mode & 0o777) for one in (state, state / "python", made)] == ["0o700"] * 3


def test_without_the_program_it_says_what_to_do(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stockade import Sandbox, StockadeError

    monkeypatch.setenv("STOCKADE_BIN", "/nowhere/stockade")
    with pytest.raises(StockadeError) as caught:
        Sandbox().open()
    assert caught.value.code == "unavailable" and "STOCKADE_BIN" in (caught.value.remedy or "")


def test_a_program_that_is_no_daemon_is_told(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stockade import Sandbox, StockadeError

    monkeypatch.setenv("STOCKADE_BIN", "/bin/false")
    with pytest.raises(StockadeError) as caught:
        Sandbox().open()
    assert caught.value.code == "unavailable"
    assert list((state / "python").iterdir()) == []
