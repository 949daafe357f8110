"""Several processes that act at the same moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.result import ReconcileResult
from dagster_slurm_tests.clients import Client
from dagster_slurm_tests.sessions import HELD, Observer, Place

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


def test_eight_processes_with_one_intent_of_eight_submit_it_once(place: Place, observer: Observer) -> None:
    place.create()
    observer.mark()
    results = at_once(place, [WorkerIntent("w", 8, HELD)] * 8)
    accepted = observer.accepted()
    assert len(accepted) == 8
    assert sorted(observer.workers()) == sorted(accepted) == sorted(observer.recorded("w"))
    assert sorted(job for result in results for job in result.submitted) == sorted(accepted)
    assert [job for result in results for job in result.recovered] == []
    observer.check()
    for result in results:
        assert sorted(result.live) == sorted(accepted), result
        assert not result.held_back


def test_four_processes_with_two_intents_submit_each_once(place: Place, observer: Observer) -> None:
    place.create()
    observer.mark()
    requests = [WorkerIntent("a", 3, HELD), WorkerIntent("b", 2, HELD)] * 2
    results = at_once(place, requests)
    accepted = observer.accepted()
    assert len(accepted) == 5
    assert len(observer.recorded("a")) == 3
    assert len(observer.recorded("b")) == 2
    assert sorted(observer.workers()) == sorted(accepted)
    assert sorted(job for result in results for job in result.submitted) == sorted(accepted)
    observer.check()
