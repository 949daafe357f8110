"""Child processes that never outlive the agent.

The agent makes itself the reaper of its orphaned descendants (Linux: child subreaper), so everything that was started
below it stays its descendant and can be found and ended, whatever process group or session it moved to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

POLL_SECONDS = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same pid by its start time (clock ticks since boot)."""

    pid: int
    parent: int
    state: str
    started: int
    name: str


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process. Without it (not Linux) they could get away."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def raise_open_files_limit() -> None:
    """Ray opens many files; the hard limit is the site's word."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start(
    argv: list[str],
    environ: Mapping[str, str],
    *,
    cwd: str | None = None,
    output: IO[bytes] | int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own; it gets SIGTERM should the agent be killed.

    Args:
        output: Where stdout and stderr go; None inherits them.
    """
    parent = os.getpid()

    def follow_parent() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        argv,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=follow_parent,  # safe: the agent has one thread
    )


def read_process(pid: int) -> Process | None:
    """One process, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return None
    # The name may hold spaces and parentheses; the fields after the last one are plain.
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        state=fields[0],
        started=int(fields[19]),
        name=text[opening + 1 : closing],
    )


def all_processes() -> list[Process]:
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in found if process is not None]


def below(root: int, processes: Iterable[Process]) -> list[Process]:
    """Descendants of ``root``, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        for process in children.get(waiting.pop(), []):
            found.append(process)
            waiting.append(process.pid)
    return found


def descendants(root: int) -> list[Process]:
    """Living descendants of ``root``; ended ones that nobody has waited for do not count."""
    return [process for process in below(root, all_processes()) if process.state not in "ZX"]


def is_same(process: Process) -> bool:
    """Whether that very process still lives."""
    current = read_process(process.pid)
    return current is not None and current.started == process.started and current.state not in "ZX"


def send(process: Process, number: int) -> None:
    if is_same(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal the process group that ``start`` gave the child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def end_tree(child: subprocess.Popen[bytes], *, grace_seconds: float) -> None:
    """TERM to the child, KILL to it and to everything that was below it once the time is over.

    The descendants are noted before the first signal: an orphan would no longer be found below the child.
    """
    noted = descendants(child.pid)
    if child.poll() is None:
        child.terminate()
        wait_until(lambda: child.poll() is not None, grace_seconds)
    noted.extend(process for process in descendants(child.pid) if process not in noted)
    for process in noted:
        send(process, signal.SIGKILL)
    if child.poll() is None:
        child.kill()
    child.wait()
    wait_until(lambda: not any(is_same(process) for process in noted), 2.0)


def end_everything(limit_seconds: float = 10.0) -> list[Process]:
    """KILL all descendants of this process; returns those that are still there at the limit."""

    def none_left() -> bool:
        for process in descendants(os.getpid()):
            send(process, signal.SIGKILL)
        reap_orphans(())
        return not descendants(os.getpid())

    wait_until(none_left, limit_seconds)
    return descendants(os.getpid())


def reap_orphans(own_children: Iterable[int]) -> None:
    """Collect ended processes that came to us as orphans; ``own_children`` are waited for by their ``Popen``."""
    own, mine = os.getpid(), set(own_children)
    for process in all_processes():
        if process.parent == own and process.state == "Z" and process.pid not in mine:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def wait_until(condition: Callable[[], bool], limit_seconds: float) -> bool:
    """Poll a condition; False when it did not hold within the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
