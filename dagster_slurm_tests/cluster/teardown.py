"""End a box: its jobs, its daemons, and whatever they left behind."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from . import daemons
from .definition import MARKER, BoxDefinition
from .errors import BoxError
from .places import release_ports
from .services import cancel_jobs
from .state import recorded_processes

# Reverse of the order in which they need each other.
_ORDER = ("slurmd.", "sshd", "slurmctld", "slurmdbd", "mariadbd", "munged")


def tear_down(definition: BoxDefinition, *, keep: bool = False) -> None:
    """End a box in any state, half started ones included; nothing happens to one that is gone.

    Args:
        definition: The box.
        keep: Leave the directory with its logs in place.

    Raises:
        BoxError: A process could not be ended; names it. The directory then stays.
    """
    directory = Path(definition.directory)
    if not directory.exists():
        return
    # Looked at before anything ends: a job's process that cleared its environment is known by its parent only.
    members = daemons.marked_processes(MARKER, definition.directory)
    known = {name: process for name, process in recorded_processes(definition).items() if process is not None}
    for process in (*known.values(), *members):
        daemons.send(process, signal.SIGCONT)
    if "slurmctld" in known:
        _cancel_what_runs(definition)
    for prefix in _ORDER:
        daemons.terminate([process for name, process in known.items() if name.startswith(prefix)], 10)
    _kill_leftovers(definition.directory, members)
    release_ports(directory, definition.ports)
    if keep:
        (directory / "state.json").unlink(missing_ok=True)
    else:
        shutil.rmtree(directory)


def _cancel_what_runs(definition: BoxDefinition) -> None:
    try:
        cancel_jobs(definition, seconds=8)
    except BoxError:
        # A controller or job that does not listen: its processes are killed as leftovers.
        return


def _kill_leftovers(directory: str, members: list[daemons.Process]) -> None:
    """Kill what is left of the members and everything else that carries the box's marker."""
    deadline = time.monotonic() + 20
    while leftovers := {*filter(daemons.is_alive, members), *daemons.marked_processes(MARKER, directory)}:
        if time.monotonic() > deadline:
            raise BoxError(f"processes of the box in {directory} do not end: {sorted(left.pid for left in leftovers)}")
        daemons.terminate(leftovers, 0)
