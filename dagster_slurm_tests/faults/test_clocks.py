"""Wrong clocks: of the client, of the compute nodes, and a login clock that steps during a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.plan import CommitRequest
from dagster_slurm_tests.sessions import HELD, Observer, Place, until
from dagster_slurm_tests.unit.session.meddling import Meddled, Session

pytestmark = pytest.mark.fault("F9")

WRONG = [-86_400, -600, 600, 86_400]


@pytest.mark.parametrize("wrong", WRONG)
def test_N_8_wrong_clock_of_the_client_changes_nothing(
    place: Place, observer: Observer, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + wrong)
    session = place.create()
    asked = WorkerIntent("w", 2, HELD, pending_timeout=300, drain_timeout=30)
    first = session.reconcile_workers(asked, observed=session.inspect())
    assert len(first.submitted) == 2
    assert not first.held_back
    snapshot = session.inspect()
    again = session.reconcile_workers(asked, observed=snapshot)
    assert (again.submitted, again.expired, again.released, again.held_back.codes) == ((), (), (), ())
    assert abs(snapshot.observed_at - right()) < 60, "the login node's clock"
    assert all(abs(w.submitted_at - snapshot.observed_at) < 60 for w in snapshot.workers("w") if w.submitted_at)
    (released,) = session.reconcile_workers(WorkerIntent("w", 1, HELD, drain_timeout=30)).released
    (deadline,) = [r["drain_deadline"] for r in observer.ledger()["workers"] if r["slurm_job_id"] == released]
    assert abs(deadline - right() - 90) < 60


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_clock_of_the_compute_nodes_moves_no_deadline(place: Place, observer: Observer, wrong: int) -> None:
    shim = f'date() {{ case "$1" in +%s) echo $(($(command date +%s) + {wrong})) ;; *) command date "$@" ;; esac; }}'
    stubborn = attrs.evolve(place, limits={"setup": f"{shim}\nexport STUB_IGNORES_DRAIN=yes"})
    session = stubborn.create()
    (job,) = session.reconcile_workers(WorkerIntent("w", 1)).submitted
    until(lambda: observer.workers() == {job: "RUNNING"}, "the worker runs")
    assert session.reconcile_workers(WorkerIntent("w", 0, drain_timeout=60)).released == (job,)
    (deadline,) = [r["drain_deadline"] for r in observer.ledger()["workers"]]
    assert abs(deadline - time.time() - 120) < 60
    for _ in range(2):
        session.reconcile_workers(WorkerIntent("w", 0, drain_timeout=60))
        assert observer.workers() == {job: "RUNNING"}, "not cancelled early"
        assert [r["drain_deadline"] for r in observer.ledger()["workers"]] == [deadline]


JUMPS = [sign * jump for jump in (61, 75, 120, 600, 3600, 86_400, 31_536_000) for sign in (-1, 1)]
BACK = [-1, -2, -10, -30, -59, -60]


@pytest.mark.parametrize("grow", [True, False])
@pytest.mark.parametrize("jump", [*JUMPS, *BACK])
def test_login_clock_that_steps_between_look_and_commit_refuses_it(jump: int, grow: bool) -> None:
    session = Session()
    if not grow:
        session.call(3)
    answers: list[Any] = []

    def steps(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        session.scheduler.now += jump
        answers.append(commit(request))
        return answers[-1]

    outcome = session.call(3 if grow else 1, Meddled(session.site, [steps]))
    assert answers[0].code == "stale"
    assert len(outcome.submitted) == (3 if grow else 0)
    assert len(session.workers()) == (3 if grow else 1)
    ledger = session.site.read()
    assert ledger is not None
    deadlines = [record.drain_deadline for record in ledger.workers if record.drain_deadline is not None]
    assert all(deadline == session.scheduler.now + 90 for deadline in deadlines), "decided anew on the new clock"
    assert len(deadlines) == (0 if grow else 2)
