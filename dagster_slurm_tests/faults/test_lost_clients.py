"""Clients that are killed, cut off or started anew in the middle of their work."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import ReplyIncomplete
from dagster_slurm_tests.clients import Client
from dagster_slurm_tests.integration.loopback import Relay
from dagster_slurm_tests.sessions import HELD, Observer, Pause, Place, clock_ahead, until

THREE = WorkerIntent("w", 3, HELD)


def lock_is_free(place: Place) -> bool:
    return not (place.directory / "lock").exists()


def check_three(observer: Observer, *told: tuple[str, ...]) -> None:
    """Exactly three jobs, and the calls together told of each once."""
    accepted = observer.accepted()
    assert len(accepted) == 3
    assert sorted(job for jobs in told for job in jobs) == sorted(accepted)
    assert sorted(observer.workers()) == sorted(observer.recorded("w")) == sorted(accepted)
    assert observer.open_tokens() == []
    observer.check()


class CuttingRelay(Relay):
    """Breaks all connections, once, after so many more bytes from the login node, or to it when ``counts_requests``."""

    left: int | None = None
    counts_requests = False

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            from_login_node = source.getpeername()[1] == self._target_port
            while piece := source.recv(65536):
                if from_login_node != self.counts_requests and self.left is not None:
                    piece, self.left = piece[: self.left], self.left - len(piece)
                    sink.sendall(piece)
                    if self.left <= 0:
                        self.left = None
                        self.break_all()
                        return
                else:
                    sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def cut(place: Place) -> Iterator[CuttingRelay]:
    """A relay to the login node that can be cut."""
    running = CuttingRelay(place.address.port)
    yield running
    running.close()


@pytest.mark.fault("F1")
@pytest.mark.parametrize("step", ["prepared", "checked", "ledger-in-place", "before-sbatch", "after-sbatch"])
def test_killed_client_changes_nothing(place: Place, observer: Observer, pause: Pause, step: str) -> None:
    place.create()
    observer.mark()
    with Client(place, faults=pause.at(step)) as client:
        client.ready()
        client.begin("reconcile_workers", THREE)
        pause.reached()
        client.kill()
    pause.resume()
    # The commit goes on without its client and does all of its work.
    until(lambda: len(observer.accepted()) == 3 and lock_is_free(place), "the commit done")
    result = place.open().reconcile_workers(THREE)
    assert result.submitted == ()
    assert sorted(result.recovered) == sorted(observer.accepted()) == sorted(observer.recorded("w"))
    assert sorted(result.live) == sorted(observer.workers())
    assert len(observer.accepted()) == 3
    assert not result.held_back
    observer.check()


@pytest.mark.fault("F3")
@pytest.mark.parametrize("step", ["prepared", "ledger-in-place", "before-sbatch", "effects-done"])
def test_connection_cut_after_the_request_was_sent(
    place: Place, observer: Observer, pause: Pause, cut: CuttingRelay, tmp_path: Path, step: str
) -> None:
    place.create()
    observer.mark()
    far = place.reached_through(cut.port, tmp_path / "known_hosts")
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(far.open(faults=pause.at(step)).reconcile_workers, THREE)
        pause.reached()
        cut.break_all()
        pause.resume()
        result = growing.result(timeout=60)
    following = place.open().reconcile_workers(THREE)
    check_three(observer, result.submitted, following.submitted, following.recovered)
    assert sorted(following.live) == sorted(observer.accepted())
    assert not following.held_back


@pytest.mark.fault("F3")
@pytest.mark.parametrize(
    "offset",
    [
        1,
        200,
        500,
        800,
        *(pytest.param(offset, marks=pytest.mark.slow) for offset in range(0, 1200, 10) if offset % 100),
    ],
)
def test_connection_cut_during_the_reply(
    place: Place, observer: Observer, pause: Pause, cut: CuttingRelay, tmp_path: Path, offset: int
) -> None:
    place.create()
    observer.mark()
    far = place.reached_through(cut.port, tmp_path / "known_hosts")
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(far.open(faults=pause.at("effects-done")).reconcile_workers, THREE)
        pause.reached()
        cut.left = offset
        pause.resume()
        result = growing.result(timeout=60)
    following = place.open().reconcile_workers(THREE)
    # Whichever reply was cut, the commit's or that of the note about its jobs.
    check_three(observer, result.submitted)
    assert following.submitted == ()
    # A note that was cut off before it ran is made good by the next call, wholly.
    assert sorted(following.recovered) in ([], sorted(result.submitted))
    assert not following.held_back


@pytest.mark.fault("F3")
@pytest.mark.parametrize(
    "offset", [0, 9000, *(pytest.param(o, marks=pytest.mark.slow) for o in range(400, 26000, 640) if o % 9000)]
)
def test_connection_cut_while_the_requests_are_sent(
    place: Place, observer: Observer, cut: CuttingRelay, tmp_path: Path, offset: int
) -> None:
    """In the look, in the middle of the commit, or in the note about its jobs: what came in part ran not at all."""
    place.create()
    observer.mark()
    far = place.reached_through(cut.port, tmp_path / "known_hosts").open()
    far.inspect()
    cut.counts_requests = True
    cut.left = offset
    told: tuple[str, ...] = ()
    try:
        told = far.reconcile_workers(THREE).submitted
    except ReplyIncomplete:
        # The look was cut.
        assert observer.accepted() == []
    following = place.open().reconcile_workers(THREE)
    check_three(observer, told, following.submitted)
    assert set(following.recovered) <= set(told)
    assert not following.held_back


@pytest.mark.fault("F3")
@pytest.mark.parametrize("count", [1, 3])
def test_budget_of_a_call_holds_when_its_first_reply_is_lost(
    place: Place, observer: Observer, pause: Pause, cut: CuttingRelay, tmp_path: Path, count: int
) -> None:
    place.create()
    observer.mark()
    far = place.reached_through(cut.port, tmp_path / "known_hosts")
    session = far.open(faults=pause.at("effects-done"))
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(session.reconcile_workers, WorkerIntent("w", 8, HELD), max_submissions=count)
        pause.reached()
        cut.break_all()
        pause.resume()
        result = growing.result(timeout=60)
    assert sorted(result.submitted) == sorted(observer.accepted())
    assert len(observer.accepted()) == count
    assert "budget" in result.held_back.codes


@pytest.mark.fault("F1")
def test_drain_deadline_survives_restarts_of_the_client(place: Place, observer: Observer) -> None:
    def record() -> dict[str, object]:
        (found,) = observer.ledger()["workers"]
        return dict(found)

    stubborn = attrs.evolve(place, limits={"setup": "export STUB_IGNORES_DRAIN=yes"})
    with Client(stubborn) as first:
        stubborn.create()
        first.ready()
        (job,) = first.call("reconcile_workers", WorkerIntent("w", 1)).submitted
        until(lambda: observer.queue().get(job) == "RUNNING", "the worker runs")
        assert first.call("reconcile_workers", WorkerIntent("w", 0, drain_timeout=20)).released == (job,)
        first.kill()
    deadline = record()["drain_deadline"]
    assert isinstance(deadline, int)
    for ahead in (0, 60):
        with Client(stubborn, faults=clock_ahead(ahead)) as later:
            later.ready()
            result = later.call("reconcile_workers", WorkerIntent("w", 0, drain_timeout=9000), release=[job])
            assert (result.released, result.expired) == ((), ())
            assert record()["drain_deadline"] == deadline
            assert observer.queue()[job] == "RUNNING"
    with Client(stubborn, faults=clock_ahead(100)) as last:
        last.ready()
        last.call("reconcile_workers", WorkerIntent("other", 0))
        until(lambda: job not in observer.queue(), "the overdue worker cancelled")
    assert record()["drain_deadline"] == deadline
