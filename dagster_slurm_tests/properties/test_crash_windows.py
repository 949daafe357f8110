"""Every crash window, one after the other: a commit that dies, is suspended, or loses its reply at each of its steps.

Then another process acts, the suspended commit goes on, what was late arrives, and the intent must hold exactly.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import LockTimeout, RemoteError
from dagster_slurm.testing.commit import SimulatedCommit
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.properties.test_reconcile_machine import ReconcileMachine

LONGEST_COMMIT = 60
SCENARIOS = {
    "grow from nothing": (0, 3, []),
    "grow, one answer lost": (1, 3, ["lost"]),
    "grow, one late": (0, 2, ["late", "ok"]),
    "grow, one refused": (0, 3, ["ok", "refused"]),
    "grow, nothing came of it": (0, 2, ["nothing"]),
    "shrink": (3, 1, []),
    "to nothing": (2, 0, []),
    "grow by eight": (0, 8, []),
    "four to two": (4, 2, []),
}
#: Seconds between the fault and the next process: below and above what a lock, an effect and an observation last.
WAITED = [0, 80, 1, 20, 39, 41, 60, 61, 74, 75, 76, 119, 121, 200, 400][: amount(2, 15)]


class Windows(ReconcileMachine):
    """The state machine's world and invariants, driven by hand."""

    def check(self) -> None:
        super().check()
        self.silence_is_not_an_end()

    def act(self, count: int) -> None:
        """A call of a process that meets no fault of its own."""
        self.bound = max(len(self.counted()), count, *self.paused_counts)
        with contextlib.suppress(RemoteError, LockTimeout):
            self.call(WorkerIntent("w", count, drain_timeout=30))
        self.check()


#: Rows of the fault matrix. A commit that dies takes its client with it; with "power" go all unsynced contents.
ROWS = {"die": ("F1", "F2"), "power": ("F2",), "pause": ("F13",), "lose": ("F3",)}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.fault(*rows)) for kind, rows in ROWS.items()])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("waited_seconds", WAITED)
def test_intent_holds_after_a_fault_at_every_step(kind: str, scenario: str, waited_seconds: int) -> None:
    orders = (True, False) if "late" in SCENARIOS[scenario][2] else (True,)
    for step, late_first in itertools.product(range(LONGEST_COMMIT), orders):
        reached = go_through(kind, step, scenario, waited_seconds, late_first=late_first)
        for row in ROWS[kind]:
            executed(row, simulated=1)
        if not reached:
            break


def go_through(
    kind: str,
    step: int,
    scenario: str,
    waited_seconds: int,
    *,
    late_first: bool = True,
    commit_type: type[SimulatedCommit] = SimulatedCommit,
) -> bool:
    """One fault at one step of a scenario, every invariant checked throughout; whether the commit had that step."""
    first, second, answers = SCENARIOS[scenario]
    world = Windows()
    world.create()
    world.act(first)
    for job in list(world.scheduler.jobs)[: 1 + first // 2]:
        world.site.start_job(job)
    world.site.commit_type = commit_type
    made = len(world.site.steps)
    world.reconcile(count=second, fault=(kind, step), submissions=list(answers), pending_timeout=None)
    world.check()
    reached = len(world.site.steps) - made >= step
    world.time_passes(waited_seconds)
    world.act(second)
    if late_first:
        world.late_submissions_arrive()
        world.check()
    # The suspended commit may still do what it was asked for, and nothing that would go beyond it.
    world.bound = max(len(world.counted()), second)
    world.site.wake()
    world.paused_counts.clear()
    world.check()
    for job in list(world.scheduler.jobs):
        world.site.start_job(job)
        world.check()
    world.act(second)
    world.after_the_faults_the_intent_holds(second)
    world.check()
    return reached
