"""Start processes that carry a mark, find every process that carries it, and end them by id."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from dagster_slurm_tests.cluster.daemons import (
    identify,
    marked_processes,
    tail,
    terminate,
)
from example_project.demo.errors import DemoError

MARK_VARIABLE = "DAGSTER_SLURM_DEMO"
"""Environment variable that everything started here inherits, with a value of this demo alone."""
GRACE_SECONDS = 20.0
POLL_SECONDS = 0.2


@attrs.frozen
class Service:
    """A process that was started here and is meant to keep running."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise DemoError with the end of its log when it has ended."""
        if self.process.poll() is not None:
            raise DemoError(f"{self.name} ended with status {self.process.returncode}.\n{tail(self.log)}")


@attrs.frozen
class MarkedProcesses:
    """The processes of one demo, known by a mark in their environment, whatever their parent is now."""

    mark: str = attrs.field(factory=lambda: secrets.token_hex(16))
    _children: list[subprocess.Popen[bytes]] = attrs.field(factory=list, init=False, repr=False)

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Service:
        """Start a process in a session of its own: a Ctrl-C in the terminal reaches this program only."""
        with log.open("ab") as stream:
            process = subprocess.Popen(
                argv,
                env={**environment, MARK_VARIABLE: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(process)
        return Service(name, process, log)

    def stop(self) -> list[str]:
        """End every process that carries the mark: ask, wait, then kill.

        Returns:
            What was alive before, as `describe` writes it.
        """
        alive = marked_processes(MARK_VARIABLE, self.mark)
        described = [describe(process.pid) for process in alive]
        terminate(alive, GRACE_SECONDS)
        # One that was just being started when the others were asked to end.
        terminate(marked_processes(MARK_VARIABLE, self.mark), 1.0)
        for child in self._children:
            child.poll()  # collects its exit status
        return described

    def left(self) -> list[str]:
        """The processes with the mark that are alive, as `describe` writes them."""
        return [describe(process.pid) for process in marked_processes(MARK_VARIABLE, self.mark)]


def processes_using(directory: Path) -> list[str]:
    """The living processes with this directory in their arguments, environment or working directory.

    Processes of other users are seen only by root. This process itself is never among them.
    """
    wanted = os.fsencode(directory)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid() or identify(int(entry.name)) is None:
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            working = os.fsencode(os.readlink(entry / "cwd"))
            if any(
                wanted in text for text in (working, (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes())
            ):
                found.append(describe(int(entry.name)))
    return found


def describe(pid: int) -> str:
    """A process's id and the start of its command line."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "(ended)"
    return f"{pid} {command[:100]}"


def wait_until(condition: Callable[[], bool], limit_seconds: float) -> bool:
    """Look at the condition until it holds; False when it did not within the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
