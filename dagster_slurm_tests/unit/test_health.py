"""What counts as wrong with a session."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.health import findings

NOW = 1_700_000_000
HEAD = AllocationSnapshot(slurm_job_id="1", role="head", state="RUNNING", committed=True, ready=True)
WORKER = AllocationSnapshot(
    slurm_job_id="2",
    role="worker",
    state="RUNNING",
    committed=True,
    ready=True,
    intent="a",
    submitted_at=NOW - 3600,
    time_limit_seconds=7200,
    time_left_seconds=3700,
)


def wrong(head: AllocationSnapshot = HEAD, *workers: AllocationSnapshot, **changes: Any) -> tuple[str, ...]:
    values: dict[str, Any] = {
        "session_id": "run",
        "observed_at": NOW,
        "certain": True,
        "head": head,
        "successor": None,
        "allocations": (head, *workers),
    }
    return findings(SessionSnapshot(**{**values, **changes}), 900)


def pending(waited_seconds: int | None) -> AllocationSnapshot:
    at = None if waited_seconds is None else NOW - waited_seconds
    return attrs.evolve(
        WORKER, state="PENDING", reason="Priority", ready=False, submitted_at=at, time_left_seconds=None
    )


@pytest.mark.parametrize(
    "worker",
    [
        WORKER,
        pending(900),
        pending(None),
        attrs.evolve(WORKER, ready=False, time_left_seconds=7000),
        attrs.evolve(WORKER, ready=None, time_left_seconds=None),
        attrs.evolve(WORKER, ready=False, drain_deadline=NOW + 5),
        attrs.evolve(WORKER, state="COMPLETED", committed=False, ready=False),
        attrs.evolve(WORKER, state="TIMEOUT", committed=False, ready=False),
        attrs.evolve(WORKER, state="FAILED", committed=False, ready=False, drain_deadline=NOW - 500),
    ],
)
def test_a_healthy_session_has_no_findings(worker: AllocationSnapshot) -> None:
    assert wrong(HEAD, worker) == ()


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (pending(901), "job 2 has waited for 15 min (Priority). Let the policy try another shape"),
        (attrs.evolve(WORKER, ready=False), "has run for 58 min without joining Ray. Look at its log."),
        (attrs.evolve(WORKER, ready=False, message="no module named ray"), "and says: no module named ray"),
        (attrs.evolve(WORKER, state="NODE_FAIL", committed=False), "job 2 ended (NODE_FAIL). Look at its log."),
        (attrs.evolve(WORKER, drain_deadline=NOW - 7), "should have been cancelled 7 s ago"),
    ],
)
def test_a_worker_that_is_not_well(worker: AllocationSnapshot, said: str) -> None:
    (found,) = wrong(HEAD, worker)
    assert said in found


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (attrs.evolve(HEAD, slurm_job_id=None, state=None, committed=None, ready=None), "has no head yet"),
        (attrs.evolve(HEAD, state="TIMEOUT", committed=False, ready=False), "job 1 ended (TIMEOUT)"),
        (attrs.evolve(HEAD, state="PENDING", reason="Resources", ready=False), "job 1 waits (Resources)"),
        (attrs.evolve(HEAD, ready=None), "has not started Ray"),
    ],
)
def test_a_head_that_is_not_ready(head: AllocationSnapshot, said: str) -> None:
    (found,) = wrong(head)
    assert said in found


def test_what_is_not_known_is_not_healthy() -> None:
    found = wrong(attrs.evolve(HEAD, state=None, committed=None), certain=False, not_observed=("No answer: timeout.",))
    assert found[0] == "No answer: timeout."
    assert "Nothing is known" in found[1]
    assert wrong(not_observed=("Accounting did not answer: no",)) == ("Accounting did not answer: no",)


def test_the_session_as_a_whole() -> None:
    assert "is ending" in wrong(closing=True)[0]
    assert "2 submissions have no known outcome" in wrong(unresolved=2)[0]
    assert "No record explains the jobs 7, 8" in wrong(unrecorded=("7", "8"))[0]
