"""A commit stops while it holds the lock, another one takes the lock over, and the first one wakes up."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dagster_slurm.allocations import bookkeeping
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import LockTimeout, RemoteError
from dagster_slurm_tests.sessions import HELD, Kill, Observer, Pause, Place

pytestmark = pytest.mark.fault("F13")

A = WorkerIntent("a", 3, HELD)
BOTH = [A, WorkerIntent("b", 1, HELD)]
STEPS = [
    "prepared",
    "locked",
    "checked",
    "before-ledger",
    "ledger-in-place",
    "before-sent",
    "before-sbatch",
    "after-sbatch",
    "after-result",
]


def lineage(ledger: dict[str, Any]) -> dict[str, str]:
    return {record["slurm_job_id"]: record["token"] for record in ledger["workers"]}


def check_final(place: Place, observer: Observer) -> None:
    """Three for one intent, one for the other, whatever happened; and a further call finds nothing to do."""
    assert len(observer.accepted()) == 4
    last = place.open().reconcile_workers(BOTH)
    assert last.submitted == ()
    assert not last.held_back
    assert len(observer.recorded("a")) == 3
    assert len(observer.recorded("b")) == 1
    assert sorted(observer.workers()) == sorted(observer.accepted()) == sorted(last.live)
    assert observer.open_tokens() == []
    assert not (place.directory / "lock").exists()
    observer.check()


#: Also in the middle of three submissions, and at the last of them.
MOMENTS = [
    *((step, 1) for step in STEPS),
    *(
        pytest.param(step, occurrence, marks=pytest.mark.slow)
        for step in ("before-sent", "before-sbatch", "after-sbatch", "after-result")
        for occurrence in (2, 3)
    ),
]


@pytest.mark.parametrize(("step", "occurrence"), MOMENTS)
def test_paused_holder_changes_nothing_after_a_takeover(
    place: Place, observer: Observer, pause: Pause, step: str, occurrence: int
) -> None:
    place.create()
    observer.mark()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(place.open(faults=pause.at(step, occurrence=occurrence)).reconcile_workers, A)
        pause.reached()
        second = place.open(lock_stale_seconds=0).reconcile_workers(BOTH)
        newest, content = observer.ledger(), observer.ledger_bytes()
        pause.resume()
        woken = first.result(timeout=60)
    # Its sbatch was under way: that one job, and those before it, are what the new owner left room for.
    own = occurrence - (step not in ("before-sbatch", "after-sbatch", "after-result"))
    assert len(woken.submitted) == own
    assert len(second.submitted) == 4 - own
    if step == "before-sbatch":
        assert lineage(newest).items() <= lineage(observer.ledger()).items()
    else:
        assert observer.ledger_bytes() == content
    check_final(place, observer)


#: From the moment that it holds the lock.
HELD_AT = [moment for moment in MOMENTS if "prepared" not in getattr(moment, "values", moment)]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["this one", "one that is gone"])
@pytest.mark.parametrize(("step", "occurrence"), HELD_AT)
def test_lock_of_a_killed_holder_is_free_by_itself(
    place: Place,
    observer: Observer,
    kill: Kill,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    occurrence: int,
    host: str,
) -> None:
    place.create()
    observer.mark()
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(step, occurrence=occurrence)).reconcile_workers(A)
    (owner,) = (place.directory / "lock").iterdir()
    if host != "this one":
        # Its process cannot be asked for: only the age of the lock tells.
        fields = owner.name.split(",")
        owner = owner.rename(owner.with_name(",".join([fields[0], "another-host", *fields[2:]])))
        with pytest.raises(LockTimeout, match="another-host"):
            place.open(lock_wait_seconds=1).reconcile_workers(BOTH)
        long_ago = time.time() - 80
        os.utime(owner, (long_ago, long_ago))
    # What was marked as sent and never reached the controller is given up without waiting.
    monkeypatch.setattr(bookkeeping, "SETTLE_SECONDS", 0)
    for _ in range(2):
        place.open().reconcile_workers(BOTH)
    check_final(place, observer)


def test_ledger_of_a_holder_paused_in_its_very_rename_never_comes_into_place(
    place: Place, observer: Observer, pause: Pause
) -> None:
    place.create()
    observer.mark()
    # After the last look at its own lock: only the fence is left.
    faults = f'mv() {{ case "$2" in prepared.*) {pause.stop()} ;; esac; command mv "$@"; }}\n'
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(place.open(faults=faults).reconcile_workers, A)
        pause.reached()
        place.open(lock_stale_seconds=0).reconcile_workers(BOTH)
        content = observer.ledger_bytes()
        pause.resume()
        woken = first.result(timeout=60)
    assert woken.submitted == ()
    assert observer.ledger_bytes() == content
    check_final(place, observer)


def test_second_taker_paused_behind_its_fence_does_not_disturb_a_third(
    place: Place, observer: Observer, pause: Pause, fresh_base: Path
) -> None:
    place.create()
    observer.mark()
    behind_fence = Pause(fresh_base / "fence")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(place.open(faults=pause.at("locked")).reconcile_workers, A)
        pause.reached()
        taker = place.open(faults=behind_fence.at("takeover-fenced"), lock_stale_seconds=0)
        second = pool.submit(taker.reconcile_workers, A)
        behind_fence.reached()
        third = place.open(lock_stale_seconds=0).reconcile_workers(BOTH)
        content = observer.ledger_bytes()
        behind_fence.resume()
        assert second.result(timeout=60).submitted == ()
        pause.resume()
        assert first.result(timeout=60).submitted == ()
    assert len(third.submitted) == 4
    assert observer.ledger_bytes() == content
    check_final(place, observer)


def test_lock_of_a_living_holder_is_not_taken_before_its_age(place: Place, observer: Observer, pause: Pause) -> None:
    place.create()
    observer.mark()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(place.open(faults=pause.at("locked")).reconcile_workers, A)
        pause.reached()
        content = observer.ledger_bytes()
        with pytest.raises(LockTimeout) as caught:
            place.open(lock_wait_seconds=1).reconcile_workers(BOTH)
        assert str(place.directory / "lock") in str(caught.value)
        assert observer.ledger_bytes() == content
        assert observer.accepted() == []
        pause.resume()
        assert len(first.result(timeout=60).submitted) == 3
    place.open().reconcile_workers(BOTH)
    check_final(place, observer)
