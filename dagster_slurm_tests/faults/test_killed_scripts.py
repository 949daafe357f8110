"""A commit script is killed at each of its steps; the next call makes good what it left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import RemoteError
from dagster_slurm_tests.sessions import HELD, Kill, Observer, Pause, Place, clock_ahead, until

pytestmark = pytest.mark.fault("F2")

THREE = WorkerIntent("w", 3, HELD)
BEFORE_EFFECTS = ["prepared", "locked", "checked", "before-ledger", "ledger-in-place"]
SUBMIT_STEPS = ["before-sent", "before-sbatch", "after-sbatch", "after-result"]
GROW_STEPS = [
    *((step, 1) for step in BEFORE_EFFECTS),
    *((step, 2) for step in SUBMIT_STEPS),
    ("effects-done", 1),
    *(pytest.param(step, nth, marks=pytest.mark.slow) for nth in (1, 3) for step in SUBMIT_STEPS),
]


def submitted_by_then(step: str, nth: int) -> int:
    """How many jobs the killed script had submitted."""
    if step in BEFORE_EFFECTS:
        return 0
    if step == "effects-done":
        return 3
    return nth if step in ("after-sbatch", "after-result") else nth - 1


@pytest.mark.fault("F1", "F2")
@pytest.mark.parametrize(("step", "nth"), GROW_STEPS)
def test_script_and_client_killed_while_growing(
    place: Place, observer: Observer, kill: Kill, step: str, nth: int
) -> None:
    place.create()
    observer.mark()
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(step, occurrence=nth)).reconcile_workers(THREE)
    assert kill.happened
    before = observer.accepted()
    assert len(before) == submitted_by_then(step, nth)

    result = place.open().reconcile_workers(THREE)
    after = observer.accepted()
    # A submission whose sbatch may have been under way counts as live until it settles.
    in_doubt = 1 if step == "before-sbatch" else 0
    assert sorted(result.recovered) == sorted(before)
    assert len(after) == 3 - in_doubt
    assert sorted(result.submitted) == sorted(set(after) - set(before))
    assert sorted(result.live) == sorted(observer.workers()) == sorted(after) == sorted(observer.recorded("w"))
    assert len(observer.open_tokens()) == in_doubt
    assert result.held_back.codes == (("unresolved",) if in_doubt else ())
    assert not (place.directory / "lock").exists()
    observer.check()


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("before-sbatch", 2),
        ("after-sbatch", 1),
        *(pytest.param(step, nth, marks=pytest.mark.slow) for step in SUBMIT_STEPS for nth in (1, 5, 11, 12)),
    ],
)
def test_script_and_client_killed_with_two_submissions_on_their_way(
    place: Place, observer: Observer, kill: Kill, step: str, nth: int
) -> None:
    """Many are asked for, so the next is begun before the answer to the last one."""
    twelve = WorkerIntent("w", 12, HELD)
    place.create()
    observer.mark()
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(step, occurrence=nth)).reconcile_workers(twelve)
    assert kill.happened
    # What was begun goes on without the script.
    begun = {"before-sent": nth - 1, "before-sbatch": nth - 1}.get(step, min(nth + 1, 12))
    until(lambda: len(observer.accepted()) == begun, f"{begun} submitted")

    place.open().reconcile_workers(twelve)
    after = observer.accepted()
    in_doubt = 1 if step == "before-sbatch" else 0
    assert len(after) == 12 - in_doubt
    assert sorted(after) == sorted(observer.workers()) == sorted(observer.recorded("w"))
    assert len(observer.open_tokens()) == in_doubt
    observer.check()


@pytest.mark.parametrize("step", ["ledger-in-place", "before-sent", "after-sbatch", "effects-done"])
def test_script_killed_while_growing_and_the_same_call_goes_on(
    place: Place, observer: Observer, kill: Kill, step: str
) -> None:
    place.create()
    observer.mark()
    session = place.open(faults=kill.at(step))
    result = session.reconcile_workers(THREE)
    assert kill.happened
    accepted = observer.accepted()
    assert sorted(result.submitted) == sorted(result.live) == sorted(accepted) == sorted(observer.recorded("w"))
    assert result.recovered == ()
    # What the killed script had not begun was dropped: this call says so, the next one submits it.
    assert len(accepted) == submitted_by_then(step, 1)
    assert bool(result.held_back) == (len(accepted) < 3)
    following = session.reconcile_workers(THREE)
    assert sorted((*accepted, *following.submitted)) == sorted(observer.accepted()) == sorted(following.live)
    assert len(following.live) == 3
    assert not following.held_back
    observer.check()


@pytest.mark.fault("F1", "F2")
@pytest.mark.parametrize("step", [*BEFORE_EFFECTS, "before-cancel", "after-cancel", "effects-done"])
def test_script_and_client_killed_while_shrinking_pending(
    place: Place, observer: Observer, kill: Kill, step: str
) -> None:
    place.create().reconcile_workers(THREE)
    observer.mark()
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(step)).reconcile_workers(WorkerIntent("w", 1, HELD))
    assert kill.happened
    written = {record["slurm_job_id"]: record["drain_deadline"] for record in observer.ledger()["workers"]}

    place.open().reconcile_workers(WorkerIntent("w", 1, HELD))
    until(lambda: len(observer.workers()) == 1, "two workers cancelled", 10)
    assert sorted(observer.workers()) == observer.recorded("w")
    assert observer.accepted() == []
    for record in observer.ledger()["workers"]:
        deadline = written[record["slurm_job_id"]]
        assert deadline is None or record["drain_deadline"] == deadline


@pytest.mark.fault("F1", "F2")
@pytest.mark.parametrize(("step", "nth"), [("ledger-in-place", 1), ("before-drain", 1), ("before-drain", 2)])
def test_script_and_client_killed_while_draining(
    place: Place, observer: Observer, kill: Kill, step: str, nth: int
) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 2))
    until(lambda: list(observer.workers().values()) == ["RUNNING"] * 2, "both workers run")
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(step, occurrence=nth)).reconcile_workers(WorkerIntent("w", 0))
    assert kill.happened
    deadlines = {record["slurm_job_id"]: record["drain_deadline"] for record in observer.ledger()["workers"]}
    assert None not in deadlines.values()

    place.open().reconcile_workers(WorkerIntent("w", 0))
    assert {record["slurm_job_id"]: record["drain_deadline"] for record in observer.ledger()["workers"]} == deadlines
    until(lambda: observer.workers() == {}, "both workers drained")


def test_taker_killed_behind_its_fence(place: Place, observer: Observer, kill: Kill, pause: Pause) -> None:
    place.create()
    observer.mark()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(place.open(faults=pause.at("locked")).reconcile_workers, THREE)
        pause.reached()
        taker = place.open(faults=kill.with_client_at("takeover-fenced"), lock_stale_seconds=0)
        with pytest.raises(RemoteError):
            taker.reconcile_workers(THREE)
        assert kill.happened
        pause.resume()
        # Its ledger was taken away, so it decides again.
        assert len(first.result(timeout=60).submitted) == 3
    assert len(observer.accepted()) == 3
    assert not (place.directory / "lock").exists()
    observer.check()


def test_script_killed_between_barring_and_revoking(
    place: Place, observer: Observer, kill: Kill, fresh_base: Path
) -> None:
    """What it leaves looks sent: it counts until it settles, and no job ever comes of it."""
    place.create()
    observer.mark()
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at("ledger-in-place")).reconcile_workers(WorkerIntent("w", 1, HELD))
    (token,) = observer.open_tokens()
    second = Kill(fresh_base / "second")
    with pytest.raises(RemoteError):
        place.open(faults=second.with_client_at("revoke-barred")).reconcile_workers(WorkerIntent("w", 1, HELD))
    assert second.happened
    result = place.open().reconcile_workers(WorkerIntent("w", 1, HELD))
    assert (result.submitted, result.held_back.codes) == ((), ("unresolved",))
    late = place.open(faults=clock_ahead(200))
    late.reconcile_workers(WorkerIntent("w", 1, HELD))
    assert token in observer.ledger()["revoked_tokens"]
    assert len(observer.accepted()) == len(observer.recorded("w")) == 1
    observer.check()


def test_script_and_client_killed_while_settling(
    place: Place, observer: Observer, kill: Kill, fresh_base: Path
) -> None:
    place.create()
    observer.mark()
    first = Kill(fresh_base / "first")
    for faults in (first.with_client_at("before-sent", occurrence=2), kill.with_client_at("after-revoke")):
        with pytest.raises(RemoteError):
            place.open(faults=faults).reconcile_workers(THREE)
    assert kill.happened
    result = place.open().reconcile_workers(THREE)
    assert len(result.submitted) == 2
    assert sorted(result.live) == sorted(observer.accepted()) == sorted(observer.recorded("w"))
    observer.check()


def test_script_and_client_killed_while_ending(place: Place, observer: Observer, kill: Kill) -> None:
    place.create().reconcile_workers(THREE)
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at("closing-marked")).end()
    assert kill.happened
    assert len(observer.workers()) == 3
    observer.mark()
    session = place.open()
    assert session.reconcile_workers(WorkerIntent("w", 5, HELD)).submitted == ()
    assert session.end().complete
    assert (observer.accepted(), observer.queue()) == ([], {})
