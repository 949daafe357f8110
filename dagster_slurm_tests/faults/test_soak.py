"""A long life: many reconciliations with random counts, and now and then a fault."""

from __future__ import annotations

import contextlib
import random
import resource
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import RemoteError
from dagster_slurm_tests.amount import amount, base_seed
from dagster_slurm_tests.faults.test_every_step import CANCELLING, ENTERING, SUBMITTING
from dagster_slurm_tests.sessions import HELD, Kill, Observer, Place, until

#: A live record takes below 1 kB; what ended stays for an hour, at most 50 of them.
LEDGER_BYTES = 64_000


@pytest.mark.fault("F24")
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_soak(place: Place, observer: Observer, fresh_base: Path) -> None:
    chance = random.Random(base_seed())
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 4, HELD))
    sizes, memory = [], []
    for number in range(amount(100, 1000)):
        count = chance.randint(0, 6)
        intent = WorkerIntent("w", count, HELD, drain_timeout=0)
        if chance.random() < 0.05:
            kill = Kill(fresh_base / f"kill-{number}")
            step = chance.choice([*ENTERING, *SUBMITTING, *CANCELLING, "effects-done"])
            faulty = place.open(faults=kill.with_client_at(step, occurrence=chance.randint(1, 2)))
            with contextlib.suppress(RemoteError):
                faulty.reconcile_workers(intent)
            faulty.close()
        else:
            session.reconcile_workers(intent)
            counted = len(observer.recorded("w")) + len(observer.open_tokens())
            assert counted == count or observer.open_tokens(), "what is in doubt counts until it settles"
            assert len(observer.recorded("w")) <= count + len(observer.open_tokens())
        if number % 50 == 49:
            observer.check()
            sizes.append(len(observer.ledger_bytes()))
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    session.reconcile_workers(WorkerIntent("w", 0, HELD))
    until(lambda: observer.workers() == {}, "everything released")
    assert max(sizes) < LEDGER_BYTES, sizes
    assert memory[-1] - memory[len(memory) // 4] < 20_000, f"kilobytes: {memory}"
    assert session.end().complete or observer.open_tokens()
    assert observer.queue() == {}
