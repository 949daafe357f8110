"""Every hook while the controller is dead, hangs, or dies and comes back under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import DagsterSlurmError
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.faults.test_silent_controller import wait_until_saved
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

pytestmark = [pytest.mark.fault("F6"), pytest.mark.slow]

SHAPES = [SlurmWorkerAllocationConfig(time_limit=f"00:0{minutes}:00") for minutes in (1, 2)]

#: What is asked of a session that has two workers in "w"; the second argument is the first worker's job id.
HOOKS: dict[str, Callable[[AllocationSession, str], Any]] = {
    "inspect": lambda session, job: session.inspect(),
    "estimate": lambda session, job: session.estimate_worker_starts(SHAPES),
    "plan": lambda session, job: session.plan_workers(WorkerIntent("w", 4, HELD)),
    "grow": lambda session, job: session.reconcile_workers(WorkerIntent("w", 3, HELD)),
    "another intent": lambda session, job: session.reconcile_workers([WorkerIntent("v", 1, HELD)]),
    "shrink": lambda session, job: session.reconcile_workers(WorkerIntent("w", 1)),
    "release": lambda session, job: session.reconcile_workers(WorkerIntent("w", 1), release=[job]),
    "add": lambda session, job: session.add_worker_allocation(HELD),
    "successor": lambda session, job: session.submit_successor(HELD),
    "head": lambda session, job: session.ensure_head(),
}


def nodes_back(box: SlurmBox) -> None:
    until(lambda: set(box.node_states().values()) <= {"idle", "mix", "mixed", "alloc", "allocated"}, "all nodes back")


@contextmanager
def outage(box: SlurmBox, how: str, asked: Callable[[], list[Future[Any]]]) -> Iterator[list[Future[Any]]]:
    """The hooks are called once the controller is gone; "restarted" means that it comes back while they wait."""
    if how == "stopped":
        box.stop_daemon("slurmctld")
    else:
        box.kill_daemon("slurmctld")
    try:
        calls = asked()
        if how == "restarted":
            until(lambda: slurm_commands(box), "a Slurm command that waits for the controller")
            box.start_daemon("slurmctld")
        yield calls
    finally:
        if how == "stopped":
            box.continue_daemon("slurmctld")
        elif box.daemons()["slurmctld"] is None:
            box.start_daemon("slurmctld")
        nodes_back(box)


def slurm_commands(box: SlurmBox) -> bool:
    names = (Path(f"/proc/{process.pid}/comm") for process in box.processes())
    return any(name.read_text().strip() in ("squeue", "scontrol", "sbatch") for name in names if name.exists())


def answer(call: Future[Any]) -> Any:
    """What the hook returned, or the error of ours that it raised; any other error fails the test."""
    try:
        return call.result(timeout=120)
    except DagsterSlurmError as error:
        return error


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize("how", ["killed", "stopped", "restarted"])
def test_A_2_no_hook_submits_loses_or_ends_anything_during_an_outage(
    box: SlurmBox, place: Place, observer: Observer, how: str, repeat: int
) -> None:
    session = place.create()
    first, _ = session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted
    jobs, content = observer.queue(), observer.ledger_bytes()
    wait_until_saved(box, observer)
    observer.mark()
    sessions = {name: place.open() for name in HOOKS}
    with ThreadPoolExecutor(len(HOOKS)) as pool:

        def ask() -> list[Future[Any]]:
            return [pool.submit(hook, sessions[name], first) for name, hook in HOOKS.items()]

        with outage(box, how, ask) as calls:
            answers = dict(zip(HOOKS, map(answer, calls), strict=True))
    executed("F6", real=len(HOOKS))
    if how != "restarted":
        assert observer.accepted() == []
        assert observer.queue() == jobs
        assert observer.ledger_bytes() == content
        assert not answers["inspect"].certain
        assert {a.state for a in answers["inspect"].allocations} == {None}
        assert not any(estimate.answered for estimate in answers["estimate"])
    # Whatever a hook could do once the controller was back, each job has its record, and what is asked next comes true.
    observer.check()
    for _ in range(2):
        last = place.open().reconcile_workers([WorkerIntent("w", 2, HELD), WorkerIntent("v", 1, HELD)])
    assert (len(observer.recorded("w")), len(observer.recorded("v")), last.held_back.codes) == (2, 1, ())
    until(lambda: set(last.live) <= set(observer.queue()), "all of them in the queue")
    observer.check()
