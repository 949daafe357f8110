"""What the measurements share: a place on the box, counters from the outside, medians, and rows of the table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.shell import RemoteShell
from dagster_slurm.remote.site import RemoteSite
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import Place, make_place


@attrs.frozen
class Row:
    """One line of the table.

    Attributes:
        target: Its number in the list of targets, such as "P1".
        what: What was measured.
        measured: The figure.
        wanted: The target.
        met: Whether it is met.
    """

    target: str
    what: str
    measured: str
    wanted: str
    met: bool


@attrs.frozen
class Bench:
    """A box and the means to look at it from the outside."""

    box: SlurmBox

    @contextmanager
    def place(self, name: str) -> Iterator[Place]:
        """A place for one session; its jobs are cancelled afterwards."""
        made = make_place(self.box, Path(self.box.fresh_base(f"bench-{name}")))
        try:
            yield made
        finally:
            self.box.run(["scancel", f"--name={made.job_name}"])
            self.box.cancel_all()

    def counters(self) -> tuple[int, int]:
        """Remote commands in sshd's log, and scheduler requests of the job user in sdiag."""
        found = self.box.rpc_counts(self.box.user).get(self.box.user)
        return self.box.ssh_command_count(), 0 if found is None else found.count

    def cost(self, call: Callable[[], object]) -> tuple[int, int]:
        """Remote commands and scheduler requests of one call."""
        commands, requests = self.counters()
        call()
        after = self.counters()
        return after[0] - commands, after[1] - requests


def big_session(place: Place, shell: RemoteShell) -> AllocationSession:
    """A client of the session whose limits do not stand in the way of a measurement."""
    settings: SessionSettings = place.settings()
    return AllocationSession(
        shell, RemoteSite(shell, settings), settings, submissions_per_call=1000, live_per_session=2000
    )


def seconds(call: Callable[[], object]) -> float:
    """Duration of one call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def medians(calls: dict[str, Callable[[], object]], repeat: int = 9) -> dict[str, float]:
    """Median duration of each call; they take turns, so that a busy moment meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            found[name].append(seconds(call))
    return {name: statistics.median(values) for name, values in found.items()}
