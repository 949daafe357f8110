"""Locks that nobody holds any more, and a login clock that jumps."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import LockTimeout
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import HELD, Observer, Place

THREE = WorkerIntent("w", 3, HELD)
ELSEWHERE = f"owner.{'0' * 32},another-host,boot,1,4711,99"


def leave_lock(box: SlurmBox, place: Place, owner: str | None, age_seconds: int = 0) -> Path:
    """A lock as somebody may have left it."""
    lock = place.directory / "lock"
    box.as_user(["mkdir", "-m", "700", str(lock)])
    if owner is not None:
        box.as_user(["touch", "-d", f"{age_seconds} seconds ago", str(lock / owner)])
    return lock


def own_process() -> str:
    """The owner file's name of a process that has ended."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.readlink("/proc/self/ns/pid").removeprefix("pid:")
    return f"owner.{'0' * 32},{os.uname().nodename},{boot},{space},{gone.pid},1"


@pytest.mark.fault("F13", "F14")
@pytest.mark.parametrize("kind", ["without an owner", "process gone", "host gone, 75 s old"])
def test_abandoned_lock_is_free_by_itself(box: SlurmBox, place: Place, observer: Observer, kind: str) -> None:
    session = place.create()
    observer.mark()
    owner = {"without an owner": None, "process gone": own_process(), "host gone, 75 s old": ELSEWHERE}[kind]
    lock = leave_lock(box, place, owner, 75 if owner == ELSEWHERE else 0)
    assert len(session.reconcile_workers(THREE).submitted) == len(observer.accepted()) == 3
    assert not lock.exists()


@pytest.mark.fault("F13")
def test_lock_of_another_host_is_waited_for_and_named(box: SlurmBox, place: Place, observer: Observer) -> None:
    place.create()
    content = observer.ledger_bytes()
    observer.mark()
    lock = leave_lock(box, place, ELSEWHERE)
    with pytest.raises(LockTimeout) as caught:
        place.open(lock_wait_seconds=1).reconcile_workers(THREE)
    for word in (str(lock), "another-host", "4711", "75 s"):
        assert word in str(caught.value)
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert [path.name for path in lock.iterdir()] == [ELSEWHERE]


@pytest.mark.fault("F9")
@pytest.mark.parametrize("jump", [-1000, 1000])
def test_login_clock_that_jumps_between_look_and_commit_refuses_the_commit(
    place: Place, observer: Observer, fresh_base: Path, jump: int
) -> None:
    place.create()
    observer.mark()
    looked = fresh_base / "looked"
    looked.mkdir()
    looked.chmod(0o777)
    later = f"{looked}/once"
    faults = (
        f"date() {{ case $1 in +%s) if mkdir {later} 2>/dev/null; then command date +%s; "
        f'else echo $(($(command date +%s) + {jump})); fi ;; *) command date "$@" ;; esac; }}\n'
        f'checkpoint() {{ [ "$1" != locked ] || mkdir {looked}/$nonce; }}\n'
    )
    result = place.open(faults=faults).reconcile_workers(THREE)
    assert len(result.submitted) == len(observer.accepted()) == 3
    # The first commit came as far as the lock and was refused; then one that submits and one that notes the ids.
    assert len(list(looked.iterdir())) == 1 + 3
    # What was carried out was decided on the new clock.
    submitted_at = {record["submitted_at"] for record in observer.ledger()["workers"]}
    now = place.open().inspect().observed_at
    assert all(abs(moment - now - jump) < 60 for moment in submitted_at)
    observer.check()
