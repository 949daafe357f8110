"""Processes of a box: start them detached, know them again, end them and everything they left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BoxError

# Runs as the new session's leader and becomes the daemon, so the written id is the daemon's.
_LAUNCH = (
    'cd "$1" && umask 022 && echo $$ >"$2.new" && mv "$2.new" "$2" && log=$3 && shift 3 && exec "$@" >>"$log" 2>&1'
)


@dataclass(frozen=True)
class Process:
    """A process that cannot be confused with a later one of the same id.

    Attributes:
        pid: Process id.
        started: Start time in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    started: int


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def identify(pid: int) -> Process | None:
    """Return the living process with this id, None when it ended (a zombie has ended)."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19]))


def is_alive(process: Process) -> bool:
    """Return whether this very process still runs; a stopped one does."""
    return identify(process.pid) == process


def is_stopped(process: Process) -> bool:
    """Return whether the process is frozen by SIGSTOP."""
    fields = _stat_fields(process.pid)
    return is_alive(process) and fields is not None and fields[0] == "T"


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to this very process; nothing happens when it has ended."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until the condition holds.

    Raises:
        BoxError: It did not hold within `seconds`; `what` names the thing waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BoxError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def launch(
    argv: Sequence[str], *, directory: Path, pid_file: Path, log: Path, environment: Mapping[str, str], setsid: str
) -> Process:
    """Start a daemon in a session of its own, as a child of init, and return it.

    Raises:
        BoxError: It did not start or ended at once; carries the end of its log.
    """
    pid_file.unlink(missing_ok=True)
    subprocess.run(
        [setsid, "--fork", "/bin/sh", "-c", _LAUNCH, "launch", str(directory), str(pid_file), str(log), *argv],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wait_until(pid_file.exists, 10, f"start of {argv[0]}")
    process = identify(int(pid_file.read_text()))
    if process is None:
        raise BoxError(f"{argv[0]} ended after its start.\n{tail(log)}")
    return process


def tail(log: Path, characters: int = 2000) -> str:
    """Return the end of a log file with its name, for error messages."""
    text = log.read_text(errors="replace")[-characters:] if log.exists() else "(no log)"
    return f"--- end of {log} ---\n{text}"


def terminate(processes: Iterable[Process], seconds: float) -> None:
    """End processes with SIGTERM, those still there after `seconds` with SIGKILL, and wait until all have ended."""
    own = list(processes)
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10.0)):
        for process in own:
            send(process, number)
        deadline = time.monotonic() + patience
        while any(is_alive(process) for process in own) and time.monotonic() < deadline:
            time.sleep(0.02)


def _own_line() -> set[int]:
    """Return the ids of the current process and its ancestors."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        fields = _stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return line


def marked_processes(variable: str, value: str) -> list[Process]:
    """Return the living processes that carry `variable=value` in their environment, and all their descendants.

    The current process and its ancestors are left out.
    """
    wanted = f"{variable}={value}".encode()
    parents: dict[int, int] = {}
    marked: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        fields = _stat_fields(int(entry))
        if fields is None:
            continue
        parents[int(entry)] = int(fields[1])
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                marked.add(int(entry))
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in marked} - marked
        grown = bool(children)
        marked |= children
    found = (identify(pid) for pid in sorted(marked - _own_line()))
    return [process for process in found if process is not None]
