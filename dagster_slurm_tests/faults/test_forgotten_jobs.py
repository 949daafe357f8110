"""Jobs that leave the queue between two calls, while accounting answers, is down, is absent, or is late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.cluster import NodeGroup, SlurmBox
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.sessions import HELD, Observer, Place, make_place, until

pytestmark = [pytest.mark.fault("F7", "F8"), pytest.mark.slow, pytest.mark.integration]

TWO = WorkerIntent("w", 2, HELD)

#: How accounting answers, as fault lines of every script, and what a session then reads of a cancelled job.
ACCOUNTING = {
    "answers": ("", "CANCELLED"),
    "down": ("", "ENDED"),
    "absent": ("echo Slurm accounting storage is disabled; return 1", "ENDED"),
    "silent about it": ("return 0", "ENDED"),
    "late": (r'command timeout "$@" | sed "s/CANCELLED[^\x1f]*/PENDING/"; return 0', None),
}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[SlurmBox]:
    """A box whose controller forgets an ended job soon."""
    with SlurmBox.start(groups=[NodeGroup("cpu", count=1, default=True)], min_job_age_seconds=2) as box:
        yield box


def with_accounting(how: str) -> str:
    lines, _ = ACCOUNTING[how]
    other = 'command timeout "$@"'
    return f'timeout() {{ case "$*" in *sacct*) {lines or other} ;; *) {other} ;; esac; }}\n'


@pytest.mark.parametrize("how", ACCOUNTING)
def test_B_6_a_job_that_was_forgotten_is_replaced_once_or_held_back_while_accounting_has_it(
    forgetful: SlurmBox, how: str
) -> None:
    bases = [forgetful.fresh_base(f"{how.replace(' ', '-')}-{number}") for number in range(amount(2, 15))]
    places = [make_place(forgetful, base) for base in bases]
    lost = [forget_one(forgetful, place) for place in places]
    until(lambda: not listed(forgetful) & set(lost), "the cancelled jobs forgotten", 150)
    if how == "answers":
        until(lambda: "CANCELLED" in accounted(forgetful, lost[-1]), "the end in accounting")
    if how == "down":
        forgetful.kill_daemon("slurmdbd")
    try:
        for place, gone in zip(places, lost, strict=True):
            check_forgotten(Observer(forgetful, place), place, how, gone)
    finally:
        if how == "down":
            forgetful.start_daemon("slurmdbd")
    executed("F8", real=len(places))
    executed("F7", real=0 if how == "answers" else len(places))


def forget_one(box: SlurmBox, place: Place) -> str:
    with closing(place.create()) as session:
        gone, _ = session.reconcile_workers(TWO).submitted
    box.run(["scancel", gone])
    return str(gone)


def listed(box: SlurmBox) -> set[str]:
    return set(box.run(["squeue", "--noheader", "--states=all", "--format=%A"]).stdout.split())


def accounted(box: SlurmBox, job: str) -> str:
    return box.run(["sacct", "--noheader", "--allocations", f"--jobs={job}", "--format=State"]).stdout


def check_forgotten(observer: Observer, place: Place, how: str, gone: str) -> None:
    with closing(place.open(faults=with_accounting(how))) as session:
        seen = session.inspect()
        # However often it is asked: one replacement, and none while accounting may know better than the queue.
        results = [session.reconcile_workers(TWO) for _ in range(4)]
    assert seen.certain
    (allocation,) = [a for a in seen.allocations if a.slurm_job_id == gone]
    assert allocation.state == ACCOUNTING[how][1]
    replaced = [job for result in results for job in result.submitted]
    assert replaced == observer.accepted()
    assert len(replaced) == (0 if how == "late" else 1)
    if how == "late":
        with closing(place.open()) as session:
            (caught_up,) = session.reconcile_workers(TWO).submitted
        assert observer.accepted() == [caught_up]
    assert len(observer.recorded("w")) == 2
    observer.check()
