"""The checks can fail: eight bugs, each planted where it could have been made, are each caught.

The same checks pass without the bug, here and in test_crash_windows. Those of the scripts themselves are planted in
the text of the scripts, in test_planted_in_scripts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations import bookkeeping
from dagster_slurm.allocations.conditions import Condition, condition_of
from dagster_slurm.allocations.decision import Decision
from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.allocations.plan import Effect, Submit
from dagster_slurm.errors import LedgerDamaged
from dagster_slurm.slurm.replies import Listing
from dagster_slurm.slurm.states import ENDED
from dagster_slurm.testing.commit import SimulatedCommit
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm_tests.properties import test_reconcile_machine
from dagster_slurm_tests.properties.test_crash_windows import LONGEST_COMMIT, Windows, go_through

# -- bugs of a commit --------------------------------------------------------------------------------


class WithoutSync(SimulatedCommit):
    """Renames a ledger that was never synced."""

    def do_prepare(self, _: None) -> str | None:
        label = super().do_prepare(None)
        self.files.unsynced.add(self.request.ledger)
        return label


class WithoutLookAtItsLock(SimulatedCommit):
    """Begins effects without a look at its lock and at the time."""

    def may_act(self) -> bool:
        return True


class WithoutTheRename(SimulatedCommit):
    """Submits whatever became of the fate file."""

    def do_send(self, effect: Submit) -> str | None:
        self.files.fates[effect.token] = attrs.evolve(self.files.fates[effect.token], fate=Fate.SENT)
        return "before-sbatch"


class WithoutFence(SimulatedCommit):
    """Takes a lock over and leaves the old owner's prepared ledger in its place."""

    def do_fence(self, holder: str) -> None:
        pass


class ActsFirst(SimulatedCommit):
    """Puts the ledger in place after the effects."""

    def steps(self) -> list[tuple[str, Effect | None]]:
        return [*self.entering(), *self.acting(), ("put_in_place", None), ("release", None)]


def windows(kind: str, scenario: str, commit_type: type[SimulatedCommit], waited_seconds: int = 80) -> None:
    """A fault at every step, as the crash windows have it."""
    for step in range(LONGEST_COMMIT):
        if not go_through(kind, step, scenario, waited_seconds, commit_type=commit_type):
            break


IN_COMMITS = {
    "drop the sync before the rename": ("power", "shrink", WithoutSync, "read_ledger"),
    "drop the recheck before the effect: its lock": (
        "pause",
        "grow from nothing",
        WithoutLookAtItsLock,
        "nothing_begins_without_its_lock",
    ),
    "drop the recheck before the effect: its fate": (
        "pause",
        "grow from nothing",
        WithoutTheRename,
        "never_more_than_asked_for",
    ),
    "take over without the fence": ("pause", "grow from nothing", WithoutFence, "never_more_than_asked_for"),
    "act before recording": ("die", "grow from nothing", ActsFirst, "every_job_is_known_to_the_ledger"),
    "act before recording: a drain": ("die", "to nothing", ActsFirst, "a_drain_starts_after_its_deadline_is_written"),
}


@pytest.mark.parametrize("bug", IN_COMMITS)
def test_bug_in_a_commit_is_caught(bug: str) -> None:
    kind, scenario, planted, check = IN_COMMITS[bug]
    windows(kind, scenario, SimulatedCommit)
    with pytest.raises((AssertionError, LedgerDamaged)) as caught:
        windows(kind, scenario, planted)
    assert caught.traceback[-1].name == check


# -- bugs of the decisions ---------------------------------------------------------------------------


def grow_and_shrink() -> None:
    """A life without any fault of a process: the scheduler is silent once, and once its listing lacks a job."""
    world = Windows()
    world.create()
    world.act(3)
    for job in list(world.scheduler.jobs):
        world.site.start_job(job)
    world.act(1)
    world.time_passes(20)
    world.act(1)
    world.scheduler.silent = True
    world.check()
    world.act(2)
    world.scheduler.silent = False
    (kept,) = [job.slurm_job_id for job in world.counted()]
    world.scheduler.hidden.add(kept)
    world.act(1)
    world.scheduler.hidden.clear()
    world.act(1)
    world.after_the_faults_the_intent_holds(2)
    world.check()


def reuse_a_token(patch: pytest.MonkeyPatch) -> None:
    def same() -> Iterator[str]:
        return itertools.cycle([f"{1:032x}"])

    patch.setattr(test_reconcile_machine, "fresh_tokens", same)


def move_a_deadline(patch: pytest.MonkeyPatch) -> None:
    counted = Decision.counted

    def released_ones_too(self: Decision, key: str) -> list[AllocationRecord]:
        late = [r for r in self.ledger.records() if r.intent == key and r.drain_deadline is not None]
        return [*counted(self, key), *(r for r in late if self.condition(r).live)]

    patch.setattr(Decision, "counted", released_ones_too)


def read_silence_as_ended(patch: pytest.MonkeyPatch) -> None:
    def ended(record: AllocationRecord, observation: Observation) -> Condition:
        return condition_of(record, observation) if observation.listing.answered else Condition(state=ENDED)

    patch.setattr(bookkeeping, "condition_of", ended)


def read_absence_as_ended(patch: pytest.MonkeyPatch) -> None:
    def ended(record: AllocationRecord, observation: Observation) -> Condition:
        found = condition_of(record, observation)
        return Condition(state=ENDED) if found.absent_but_live else found

    patch.setattr(bookkeeping, "condition_of", ended)


def ignore_an_exit_status(patch: pytest.MonkeyPatch) -> None:
    def empty(listing: Callable[[SimulatedScheduler, Any], Listing]) -> Callable[[SimulatedScheduler, Any], Listing]:
        def ask(self: SimulatedScheduler, about: Any) -> Listing:
            found = listing(self, about)
            return found if found.answered else Listing(answered=True)

        return ask

    for name in ("listing", "listing_by_id"):
        patch.setattr(SimulatedScheduler, name, empty(getattr(SimulatedScheduler, name)))


IN_DECISIONS = {
    "reuse a token": (reuse_a_token, "one_job_per_token"),
    "move a deadline": (move_a_deadline, "deadlines_never_move"),
    "read unknown as ended: silence": (read_silence_as_ended, "silence_is_not_an_end"),
    "read unknown as ended: absence": (read_absence_as_ended, "never_more_than_asked_for"),
    "ignore an exit status: squeue's": (ignore_an_exit_status, "silence_is_not_an_end"),
}


@pytest.mark.parametrize("bug", IN_DECISIONS)
def test_bug_in_a_decision_is_caught(bug: str) -> None:
    plant, check = IN_DECISIONS[bug]
    grow_and_shrink()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError) as caught:
            grow_and_shrink()
    assert caught.traceback[-1].name == check
