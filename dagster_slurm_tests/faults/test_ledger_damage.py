"""The ledger was cut, emptied, edited or written by a newer version: typed errors, and nothing is submitted."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import LedgerDamaged, LedgerTooNew, SessionError
from dagster_slurm_tests.sessions import HELD, Observer, Pause, Place

pytestmark = pytest.mark.fault("F11")

TWO = WorkerIntent("w", 2, HELD)


def newer(content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "schema_version": 2}).encode()


def other_type(content: bytes) -> bytes:
    document = json.loads(content)
    document["workers"][0]["drain_deadline"] = "soon"
    return json.dumps(document).encode()


def cut_at(part: int) -> Callable[[bytes], bytes]:
    return lambda content: content[: len(content) * part // 25]


def zeros_from(part: int) -> Callable[[bytes], bytes]:
    return lambda content: content[: len(content) * part // 5].ljust(len(content), b"\0")


#: Cut or zero-filled all along, as a crash of a file server leaves files.
ALL_ALONG = [
    *(pytest.param(cut_at(n), LedgerDamaged, marks=pytest.mark.slow, id=f"{n}/25 left") for n in range(1, 25)),
    *(pytest.param(zeros_from(n), LedgerDamaged, marks=pytest.mark.slow, id=f"zeros from {n}/5") for n in range(1, 5)),
]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        pytest.param(lambda content: b"", LedgerDamaged, id="empty"),
        pytest.param(lambda content: content[:1], LedgerDamaged, id="one byte"),
        pytest.param(lambda content: content[: len(content) // 2], LedgerDamaged, id="half"),
        pytest.param(lambda content: content[:-3], LedgerDamaged, id="end missing"),
        pytest.param(lambda content: bytes(len(content)), LedgerDamaged, id="zeros"),
        pytest.param(lambda content: b"[]", LedgerDamaged, id="no object"),
        pytest.param(lambda content: b"\xff" + content[1:], LedgerDamaged, id="not UTF-8"),
        pytest.param(other_type, LedgerDamaged, id="wrong type"),
        pytest.param(newer, LedgerTooNew, id="newer"),
        *ALL_ALONG,
    ],
)
def test_unreadable_ledger_is_a_typed_error_and_stops_submissions(
    place: Place, observer: Observer, damage: Callable[[bytes], bytes], error: type[SessionError]
) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    jobs = observer.queue()
    damaged = damage(observer.ledger_bytes())
    (place.directory / "allocation.json").write_bytes(damaged)
    observer.mark()
    for call in (
        session.inspect,
        lambda: session.reconcile_workers(TWO),
        lambda: session.add_worker_allocation(HELD),
        place.create,
    ):
        with pytest.raises(error, match=r"allocation\.json"):
            call()
    assert observer.ledger_bytes() == damaged
    assert observer.accepted() == []
    assert observer.queue() == jobs


@pytest.mark.parametrize("damage", [lambda content: content[:-3], newer], ids=["cut", "newer"])
def test_a_session_whose_ledger_cannot_be_read_ends_by_name(
    place: Place, observer: Observer, damage: Callable[[bytes], bytes]
) -> None:
    session = place.create_running()
    session.reconcile_workers([WorkerIntent("w", 1), WorkerIntent("held", 1, HELD)])
    damaged = damage(observer.ledger_bytes())
    (place.directory / "allocation.json").write_bytes(damaged)
    result = session.end()
    assert (result.complete, result.by_name) == (True, True)
    assert observer.queue() == {}
    assert observer.ledger_bytes() == damaged
    assert (place.directory / "closing").exists()


def test_plan_made_before_a_hand_edit_is_refused(place: Place, observer: Observer, pause: Pause) -> None:
    place.create().reconcile_workers(WorkerIntent("w", 1, HELD))
    observer.mark()
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(place.open(faults=pause.at("prepared")).reconcile_workers, TWO)
        pause.reached()
        edited = observer.ledger()
        edited["workers"][0]["intent"] = "other"
        edited["note"] = "by hand"
        (place.directory / "allocation.json").write_text(json.dumps(edited))
        pause.resume()
        result = growing.result(timeout=60)
    # Decided again from what was edited: none of the two is there yet.
    assert len(result.submitted) == len(observer.accepted()) == 2
    assert observer.ledger()["note"] == "by hand"
    assert len(observer.recorded("other")) == 1
    assert sorted(observer.recorded("w")) == sorted(result.submitted)


def test_plan_made_before_damage_is_refused(place: Place, observer: Observer, pause: Pause) -> None:
    place.create()
    observer.mark()
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(place.open(faults=pause.at("locked")).reconcile_workers, TWO)
        pause.reached()
        cut = observer.ledger_bytes()[:-20]
        (place.directory / "allocation.json").write_bytes(cut)
        pause.resume()
        with pytest.raises(LedgerDamaged):
            growing.result(timeout=60)
    assert observer.accepted() == []
    assert observer.ledger_bytes() == cut
