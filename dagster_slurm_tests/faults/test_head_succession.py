"""A head that dies on a real Slurm: several processes elect, scripts are killed, and one head follows."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.succession import HeadResult
from dagster_slurm.errors import RemoteError
from dagster_slurm_tests.clients import Client
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.cluster.bringup import give_to_job_user
from dagster_slurm_tests.sessions import Kill, Observer, Place, until

pytestmark = [pytest.mark.fault("F21"), pytest.mark.integration]


class Heads:
    """Stands in for the agents: what is claimed reports a head of Ray."""

    def __init__(self, box: SlurmBox, place: Place, observer: Observer) -> None:
        self._box = box
        self._place = place
        self._observer = observer

    def come_up(self) -> str:
        """The claimed allocation reports that Ray's head runs there; returns its job id."""
        ledger = self._observer.ledger()
        job_id = str(ledger["election"]["slurm_job_id"])
        records = [*ledger["workers"], ledger["head"], ledger["successor"]]
        token = next(r["token"] for r in records if r is not None and r["slurm_job_id"] == job_id)
        node = {"ray_node_id": "r", "state": "ALIVE", "slurm_job_id": job_id, "node": "n"}
        path = self._place.directory / "cluster" / f"{job_id}.json"
        path.write_text(json.dumps({"token": token, "address": "10.0.0.1:1", "nodes": [node]}))
        give_to_job_user(path, self._box.definition)
        return job_id

    def die(self) -> str:
        """The head's job is cancelled; returns its id once it is gone."""
        head = str(self._observer.ledger()["head"]["slurm_job_id"])
        self._box.run(["scancel", head])
        until(lambda: head not in self._observer.queue(), "the head gone")
        return head


@pytest.fixture
def heads(box: SlurmBox, place: Place, observer: Observer) -> Heads:
    return Heads(box, place, observer)


def begin(place: Place, observer: Observer) -> tuple[str, ...]:
    """A running head and two running workers of an intent."""
    session = place.create_running()
    workers = session.reconcile_workers(WorkerIntent("w", 2)).submitted
    until(lambda: list(observer.queue().values()) == ["RUNNING"] * 3, "head and workers run")
    return workers


def test_F21_processes_that_elect_at_once_make_one_head(place: Place, observer: Observer, heads: Heads) -> None:
    workers = begin(place, observer)
    released, kept = workers
    place.open().reconcile_workers(WorkerIntent("w", 2), release=[released], max_submissions=0)
    former = heads.die()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(place)) for _ in range(4)]
        for client in clients:
            client.ready()

        def all_at_once() -> list[HeadResult]:
            for client in clients:
                client.begin("ensure_head")
            return [client.result() for client in clients]

        first = all_at_once()
        assert {(r.standing, r.claimed) for r in first} == {("claimed", kept)}
        assert observer.ledger()["head"]["slurm_job_id"] == former, "it is published when Ray is up"
        assert heads.come_up() == kept
        second = all_at_once()
    assert {(r.standing, r.head_job_id) for r in second} == {("leads", kept)}
    assert [r.submitted for r in (*first, *second)] == [()] * 8
    ledger = observer.ledger()
    assert (ledger["head"]["slurm_job_id"], ledger["head"]["intent"]) == (kept, "w")
    assert [r["slurm_job_id"] for r in ledger["predecessors"]] == [former]
    assert ledger["election"] is None
    # It counts for its intent, and no count releases it.
    result = place.open().reconcile_workers(WorkerIntent("w", 0))
    assert (result.live, result.released) == ((kept,), ())
    assert observer.queue()[kept] == "RUNNING"
    observer.check()


#: Steps of a commit, those that the subset leaves out marked.
STEPS = [
    *("locked", "ledger-in-place", "effects-done"),
    *(pytest.param(step, marks=pytest.mark.slow) for step in ("prepared", "checked", "before-ledger")),
]


@pytest.mark.parametrize("checkpoint", STEPS)
def test_F21_a_promotion_whose_script_is_killed_is_gone_on_with(
    place: Place, observer: Observer, heads: Heads, kill: Kill, checkpoint: str
) -> None:
    session = place.create_running()
    former = observer.ledger()["head"]["slurm_job_id"]
    (successor,) = session.submit_successor().submitted
    assert session.submit_successor().submitted == ()
    until(lambda: list(observer.queue().values()) == ["RUNNING"] * 2, "head and successor run")
    assert session.promote_successor(timeout_seconds=0).standing == "claimed"
    assert heads.come_up() == successor
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(checkpoint)).promote_successor(timeout_seconds=0)
    assert kill.happened
    # Whoever comes next finishes it, also the cancel of the former head.
    result = place.open().ensure_head()
    assert (result.standing, result.head_job_id) == ("leads", successor)
    until(lambda: former not in observer.queue(), "the former head cancelled")
    assert observer.queue() == {successor: "RUNNING"}
    assert observer.ledger()["successor"] is None
    observer.check()


@pytest.mark.parametrize("checkpoint", [*STEPS, "before-drain"])
def test_F21_a_head_that_dies_at_a_step_of_a_release_is_not_followed_by_the_released_worker(
    place: Place, observer: Observer, heads: Heads, kill: Kill, checkpoint: str
) -> None:
    workers = begin(place, observer)
    # The one that an election would choose, were it not released: equal walltimes, the lowest job id.
    chosen = workers[0]
    with pytest.raises(RemoteError):
        place.open(faults=kill.with_client_at(checkpoint)).reconcile_workers(
            WorkerIntent("w", 2), release=[chosen], max_submissions=0
        )
    assert kill.happened
    heads.die()
    released = [r["slurm_job_id"] for r in observer.ledger()["workers"] if r["drain_deadline"] is not None]
    assert released == ([] if checkpoint in ("prepared", "locked", "checked", "before-ledger") else [chosen])
    result = place.open().ensure_head()
    assert result.claimed in set(workers) - set(released)
    assert heads.come_up() == result.claimed
    assert place.open().ensure_head().head_job_id == result.claimed
    observer.check()


def test_a_head_that_died_alone_is_submitted_once_by_several_processes(
    place: Place, observer: Observer, heads: Heads
) -> None:
    place.create_running()
    until(lambda: list(observer.queue().values()) == ["RUNNING"], "the head runs")
    heads.die()
    observer.mark()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(place)) for _ in range(3)]
        for client in clients:
            client.ready()
        for client in clients:
            client.begin("ensure_head")
        results = [client.result() for client in clients]
    submitted = [job_id for result in results for job_id in result.submitted]
    assert submitted == observer.accepted()
    assert len(submitted) == 1
    assert observer.ledger()["head"]["slurm_job_id"] == submitted[0]
    observer.check()
