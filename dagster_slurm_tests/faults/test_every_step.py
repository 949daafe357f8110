"""The full matrix of kills: for each kind of decision, the script (and its client) killed at each of its steps.

Quicker tests with the details of each window stand in test_killed_scripts; here every window has the same judge.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import RemoteError
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.sessions import HELD, Kill, Observer, Place, clock_ahead, until

pytestmark = [pytest.mark.slow]

ENTERING = ["prepared", "locked", "checked", "before-ledger", "ledger-in-place"]
SUBMITTING = ["before-sent", "before-sbatch", "after-sbatch", "after-result"]
CANCELLING = ["before-cancel", "after-cancel"]


def steps(effects: list[str], times: int) -> list[tuple[str, int]]:
    """Every boundary between two steps of a commit with so many effects."""
    return [*((s, 1) for s in ENTERING), *((s, n + 1) for n in range(times) for s in effects), ("effects-done", 1)]


@attrs.frozen
class Scenario:
    """A decision: what there is before it, what asks for it, how many are wanted in the end, and its steps."""

    before: Callable[[AllocationSession], None]
    intent: WorkerIntent
    steps: list[tuple[str, int]]
    release_one: bool = False
    ahead_seconds: int = 0


def holding(count: int) -> Callable[[AllocationSession], None]:
    return lambda session: session.reconcile_workers(WorkerIntent("w", count, HELD)) and None


def running(count: int) -> Callable[[AllocationSession], None]:
    def make(session: AllocationSession) -> None:
        session.reconcile_workers(WorkerIntent("w", count))
        until(lambda: [w.state for w in session.inspect().workers("w")] == ["RUNNING"] * count, "they run")

    return make


SCENARIOS = {
    "grow 1": Scenario(lambda session: None, WorkerIntent("w", 1, HELD), steps(SUBMITTING, 1)),
    "grow 8": Scenario(lambda session: None, WorkerIntent("w", 8, HELD), steps(SUBMITTING, 8)),
    "shrink 3": Scenario(holding(4), WorkerIntent("w", 1, HELD), steps(CANCELLING, 1)),
    "expire 2": Scenario(
        holding(2), WorkerIntent("w", 2, HELD, pending_timeout=60), steps(CANCELLING, 1), ahead_seconds=100
    ),
    "release 1": Scenario(running(2), WorkerIntent("w", 1), steps(["before-drain"], 1), release_one=True),
}
WINDOWS = [(name, step, nth) for name, scenario in SCENARIOS.items() for step, nth in scenario.steps]


def act(session: AllocationSession, scenario: Scenario) -> None:
    release = [session.inspect().workers("w")[0].slurm_job_id or ""] if scenario.release_one else []
    session.reconcile_workers(scenario.intent, release=release)


@pytest.mark.parametrize(
    "with_client",
    [
        pytest.param(False, marks=pytest.mark.fault("F2"), id="script"),
        pytest.param(True, marks=pytest.mark.fault("F1"), id="client"),
    ],
)
@pytest.mark.parametrize("repeat", range(2))
@pytest.mark.parametrize(("name", "step", "nth"), WINDOWS)
def test_intent_holds_after_a_kill(
    place: Place, observer: Observer, fresh_base: Path, name: str, step: str, nth: int, repeat: int, with_client: bool
) -> None:
    scenario = SCENARIOS[name]
    scenario.before(place.create())
    kill = Kill(fresh_base / "kill")
    ahead = clock_ahead(scenario.ahead_seconds) if scenario.ahead_seconds else ""
    armed = kill.with_client_at(step, occurrence=nth) if with_client else kill.at(step, occurrence=nth)
    with contextlib.suppress(RemoteError):
        act(place.open(faults=ahead + armed), scenario)
    assert kill.happened
    observer.check()
    deadlines = {r["slurm_job_id"]: r["drain_deadline"] for r in observer.ledger()["workers"] if r["drain_deadline"]}
    # One that may have been submitted settles only later; it counts as live, so nothing goes beyond the count.
    wanted = scenario.intent.count
    settled = WorkerIntent("w", wanted, scenario.intent.config)
    for _ in range(2):
        place.open(faults=ahead).reconcile_workers(settled)
        counted = len(observer.recorded("w")) + len(observer.open_tokens())
        assert counted == wanted
        observer.check()
    until(lambda: len(observer.workers()) <= wanted, "no more than the intended number is left")
    now = {r["slurm_job_id"]: r["drain_deadline"] for r in observer.ledger()["workers"]}
    assert deadlines.items() <= now.items(), "a deadline moved"
