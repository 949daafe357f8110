"""Locks that nobody holds any more, and a login clock that jumps."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import LockTimeout, RemoteError
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import HELD, Kill, Observer, Place, until

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


#: Every hook that makes a commit; each is asked of a session with two workers, the first of which has this id.
COMMITS: dict[str, Callable[[AllocationSession, str], object]] = {
    "grow": lambda session, job: session.reconcile_workers(WorkerIntent("v", 2, HELD)),
    "shrink": lambda session, job: session.reconcile_workers(WorkerIntent("w", 1)),
    "release": lambda session, job: session.reconcile_workers(WorkerIntent("w", 1, HELD), release=[job]),
    "grow two": lambda session, job: session.reconcile_workers([WorkerIntent(key, 1, HELD) for key in "uv"]),
    "drop": lambda session, job: session.reconcile_workers(WorkerIntent("w", 0)),
    "add": lambda session, job: session.add_worker_allocation(HELD),
    "remove": lambda session, job: session.remove_worker_allocation(job),
    "assign": lambda session, job: session.assign_worker_intent(job, "other"),
    "successor": lambda session, job: session.submit_successor(HELD),
}
#: What each must have made true: the two workers of "w", plus what it submits, minus what it takes away.
LIVE = dict(zip(COMMITS, (4, 1, 1, 4, 0, 3, 1, 2, 3), strict=True))


@pytest.mark.slow
@pytest.mark.fault("F14")
@pytest.mark.parametrize("kind", ["without an owner", "of another user", "renamed, but reported as failed"])
@pytest.mark.parametrize("asked", COMMITS)
def test_N_4_whatever_commits_gets_past_a_lock_that_nobody_holds_and_no_other(
    box: SlurmBox, place: Place, observer: Observer, asked: str, kind: str
) -> None:
    job, _ = place.create().reconcile_workers(WorkerIntent("w", 2, HELD)).submitted
    before, content = observer.workers(), observer.ledger_bytes()
    lock, faults = place.directory / "lock", ""
    if kind == "without an owner":
        leave_lock(box, place, None)
    elif kind == "of another user":
        lock.mkdir(mode=0o700)
        (lock / ELSEWHERE).touch()
        os.utime(lock / ELSEWHERE, (0, 0))
        with pytest.raises(LockTimeout):
            COMMITS[asked](place.open(lock_wait_seconds=1), job)
        assert (observer.workers(), observer.ledger_bytes()) == (before, content)
        (lock / ELSEWHERE).unlink()
        lock.rmdir()
    else:
        faults = 'mv() { command mv "$@"; moved=$?; case "$*" in "-T "*) return 1 ;; *) return $moved ;; esac; }\n'
    COMMITS[asked](place.open(faults=faults), job)
    assert not lock.exists()
    until(lambda: len(observer.workers()) == LIVE[asked], f"{LIVE[asked]} allocations")
    observer.check()


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


@pytest.mark.fault("F14")
def test_N_6_lock_of_another_user_is_not_taken_and_stops_submissions(place: Place, observer: Observer) -> None:
    place.create()
    content = observer.ledger_bytes()
    observer.mark()
    lock = place.directory / "lock"
    lock.mkdir(mode=0o700)
    (lock / ELSEWHERE).touch()
    os.utime(lock / ELSEWHERE, (0, 0))
    with pytest.raises(LockTimeout) as caught:
        place.open(lock_wait_seconds=1).reconcile_workers(THREE)
    assert str(lock) in str(caught.value)
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert (lock / ELSEWHERE).exists()
    (lock / ELSEWHERE).unlink()
    lock.rmdir()
    assert len(place.open().reconcile_workers(THREE).submitted) == 3


@pytest.mark.slow
@pytest.mark.fault("F13", "F14")
@pytest.mark.parametrize("age_seconds", [0, 30, 60, 70])
def test_N_6_lock_of_a_living_process_on_another_host_is_never_taken(
    box: SlurmBox, place: Place, observer: Observer, age_seconds: int
) -> None:
    place.create()
    content = observer.ledger_bytes()
    observer.mark()
    lock = leave_lock(box, place, ELSEWHERE, age_seconds)
    with pytest.raises(LockTimeout, match="another-host"):
        place.open(lock_wait_seconds=1).reconcile_workers(THREE)
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert [path.name for path in lock.iterdir()] == [ELSEWHERE]


#: A network filesystem may lose the reply to a rename that succeeded: which one, by a word of its command.
RENAMES = {
    "the lock": "lock.* lock",
    "the ledger": "prepared.* allocation.json",
    "a takeover": "lock/owner.* lock/owner.*",
    "a claim": "*/ready */revoked",
}


@pytest.mark.fault("F14")
@pytest.mark.parametrize("renamed", RENAMES)
def test_N_4_rename_that_succeeded_but_reported_failure(
    box: SlurmBox, place: Place, observer: Observer, kill: Kill, fresh_base: Path, renamed: str
) -> None:
    place.create()
    observer.mark()
    pattern, lied = RENAMES[renamed], fresh_base / "lied"
    if renamed == "a takeover":
        leave_lock(box, place, own_process())
    if renamed == "a claim":
        with pytest.raises(RemoteError):
            place.open(faults=kill.with_client_at("ledger-in-place")).reconcile_workers(THREE)
    liar = (
        'mv() { command mv "$@"; moved=$?; [ "$1" != -T ] || shift; '
        f'case "$1 $2" in {pattern.replace(" ", chr(92) + " ")}) touch {lied}; return 1 ;; esac; return $moved; }}\n'
    )
    result = place.open(faults=liar).reconcile_workers(THREE)
    assert lied.exists()
    assert len(result.submitted) == len(observer.accepted()) == 3
    assert sorted(observer.recorded("w")) == sorted(observer.workers()) == sorted(observer.accepted())
    assert not (place.directory / "lock").exists()
    observer.check()


@pytest.mark.fault("F14")
@pytest.mark.parametrize("command", ["stat", "readlink", "sleep"])
def test_N_4_stale_file_handle_while_reading_a_peers_lock_is_no_crash(
    box: SlurmBox, place: Place, observer: Observer, command: str
) -> None:
    """What cannot be read is taken for a living owner's: it is waited for, and the error says so."""
    place.create()
    observer.mark()
    lock = leave_lock(box, place, ELSEWHERE, 75)
    stale = f"{command}() {{ echo '{command}: Stale file handle' >&2; return 1; }}\n"
    session = place.open(faults=stale, lock_wait_seconds=1)
    if command == "stat":
        with pytest.raises(LockTimeout):
            session.reconcile_workers(THREE)
        assert observer.accepted() == []
        assert (lock / ELSEWHERE).exists()
    else:
        assert len(session.reconcile_workers(THREE).submitted) == 3
    place.open().reconcile_workers(THREE)
    assert len(observer.accepted()) == 3
    observer.check()
