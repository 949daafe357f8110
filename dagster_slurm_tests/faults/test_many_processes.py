"""Several processes that act at the same moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.result import ReconcileResult
from dagster_slurm_tests.clients import Client
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

pytestmark = pytest.mark.fault("F12")


def at_once(place: Place, requests: Sequence[WorkerIntent]) -> list[ReconcileResult]:
    """One process for each request; all are connected before the first one acts."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(place)) for _ in requests]
        for client in clients:
            client.ready()
        for client, intent in zip(clients, requests, strict=True):
            client.begin("reconcile_workers", intent)
        return [client.result() for client in clients]


MANY = [(8, 0), *(pytest.param(n, repeat, marks=pytest.mark.slow) for n in (2, 4, 8, 16) for repeat in (1, 2, 3))]


@pytest.mark.parametrize(("processes", "repeat"), MANY)
def test_J_9_processes_with_one_intent_of_eight_submit_it_once(
    place: Place, observer: Observer, processes: int, repeat: int
) -> None:
    place.create()
    observer.mark()
    results = at_once(place, [WorkerIntent("w", 8, HELD)] * processes)
    accepted = observer.accepted()
    assert len(accepted) == 8
    assert sorted(observer.workers()) == sorted(accepted) == sorted(observer.recorded("w"))
    assert sorted(job for result in results for job in result.submitted) == sorted(accepted)
    # Whoever comes between a commit and the note of its ids records them: each id once, by one of them.
    recovered = [job for result in results for job in result.recovered]
    assert len(recovered) == len(set(recovered))
    assert set(recovered) <= set(accepted)
    observer.check()
    for result in results:
        assert sorted(result.live) == sorted(accepted), result
        assert not result.held_back


@pytest.mark.parametrize("processes", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_processes_with_two_intents_submit_each_once(place: Place, observer: Observer, processes: int) -> None:
    place.create()
    observer.mark()
    requests = [WorkerIntent("a", 3, HELD), WorkerIntent("b", 2, HELD)] * (processes // 2)
    results = at_once(place, requests)
    accepted = observer.accepted()
    assert len(accepted) == 5
    assert len(observer.recorded("a")) == 3
    assert len(observer.recorded("b")) == 2
    assert sorted(observer.workers()) == sorted(accepted)
    assert sorted(job for result in results for job in result.submitted) == sorted(accepted)
    observer.check()


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(5))
def test_processes_with_different_counts_never_exceed_the_largest(
    place: Place, observer: Observer, repeat: int
) -> None:
    place.create()
    observer.mark()
    counts = [1, 2, 3, 5]
    at_once(place, [WorkerIntent("w", count, HELD) for count in counts])
    assert len(observer.recorded("w")) in range(min(counts), max(counts) + 1)
    place.open().reconcile_workers(WorkerIntent("w", 3, HELD))
    assert len(observer.recorded("w")) == 3
    until(lambda: len(observer.workers()) == 3, "the surplus cancelled")
    observer.check()


#: Processes by rounds: the more processes, the longer a round.
ROUNDS = [(2, 90), (4, 80), (8, 70), (16, 40)]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "rounds"), ROUNDS)
def test_round_after_round_the_same_processes_submit_exactly_what_is_asked(
    place: Place, observer: Observer, processes: int, rounds: int
) -> None:
    """One intent, two intents and mixed counts in turn, each time of a new name; then all of it is released."""
    place.create()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(place)) for _ in range(processes)]
        for client in clients:
            client.ready()
        for number in range(rounds):
            wanted = {
                0: [WorkerIntent(f"one-{number}", 2, HELD)],
                1: [WorkerIntent(f"left-{number}", 1, HELD), WorkerIntent(f"right-{number}", 2, HELD)],
                2: [WorkerIntent(f"mixed-{number}", count, HELD) for count in (1, 3)],
            }[number % 3]
            observer.mark()
            for position, client in enumerate(clients):
                client.begin("reconcile_workers", wanted[position % len(wanted)])
            for client in clients:
                client.result()
            for key in {intent.key for intent in wanted}:
                counts = [intent.count for intent in wanted if intent.key == key]
                assert min(counts) <= len(observer.recorded(key)) <= max(counts)
            # With mixed counts one may release what another submits again: each job is asked for by somebody.
            if number % 3 < 2:
                assert len(observer.accepted()) == sum(intent.count for intent in wanted)
            observer.check()
            clients[0].call("reconcile_workers", [WorkerIntent(key, 0) for key in {intent.key for intent in wanted}])
            until(lambda: not observer.workers(), "the round's allocations gone")
    executed("F12", real=rounds)
