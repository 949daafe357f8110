"""What a tick looks like in Dagster."""

from __future__ import annotations

from typing import Any

import attrs
import dagster as dg
import pytest

from dagster_slurm.allocations.result import ReconcileResult
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.policy import PolicyProblem
from dagster_slurm.recording import MAX_ROWS, Recorder, Tick, duration, numbers, tick_metadata
from dagster_slurm_tests.dagster.fakes import Notes

HEAD = AllocationSnapshot(slurm_job_id="1", role="head", state="RUNNING", committed=True)


def worker(job_id: str, **fields: Any) -> AllocationSnapshot:
    values = {"state": "RUNNING", "committed": True, "ready": True, "granted_gpus": 2, "intent": "a", **fields}
    return AllocationSnapshot(slurm_job_id=job_id, role="worker", **values)


def snapshot(*workers: AllocationSnapshot, **fields: Any) -> SessionSnapshot:
    values = {"certain": True, "observed_at": 1000, **fields}
    return SessionSnapshot(session_id="s", head=HEAD, successor=None, allocations=(HEAD, *workers), **values)


PENDING = worker("3", state="PENDING", ready=False, granted_gpus=None, reason="Resources", requested_nodes=2)


def test_numbers_count_workers_and_not_the_head() -> None:
    seen = snapshot(worker("2"), PENDING, worker("4", drain_deadline=1100), worker("5", committed=False))
    assert numbers(Tick(decision="", snapshot=seen)) == {
        "live": 3,
        "ready": 2,
        "pending": 1,
        "draining": 1,
        "granted_gpus": 4,
    }


@pytest.mark.parametrize(
    ("unknown", "missing"),
    [({"ready": None}, "ready"), ({"granted_gpus": None}, "granted_gpus")],
    ids=["ready", "granted_gpus"],
)
def test_a_number_with_an_unknown_part_is_left_out(unknown: dict[str, None], missing: str) -> None:
    found = numbers(Tick(decision="", snapshot=snapshot(worker("2"), worker("3", **unknown))))
    assert missing not in found
    assert found["live"] == 2


def test_the_table_has_one_row_for_each_allocation_with_what_slurm_said() -> None:
    seen = snapshot(worker("2", nodes=("n1", "n2"), time_left_seconds=3661, drain_deadline=1090), PENDING)
    table = tick_metadata(Tick(decision="", snapshot=seen))["slurm/allocations"].value
    rows = [record.data for record in table.records]
    assert [row["job"] for row in rows] == ["1", "2", "3"]
    assert rows[1]["nodes"] == "n1, n2"
    assert rows[1]["time left"] == "1:01:01"
    assert rows[1]["deadline in"] == "0:01:30"
    assert rows[2]["reason"] == "Resources"
    assert rows[2]["nodes"] == "2 asked for"
    assert rows[2]["GPUs"] is None
    assert {column.name for column in table.schema.columns} == set(rows[0])


def test_a_column_in_which_nobody_has_anything_to_say_is_left_out() -> None:
    table = tick_metadata(Tick(decision="", snapshot=snapshot()))["slurm/allocations"].value
    assert [column.name for column in table.schema.columns] == ["job", "role", "state", "nodes", "ready", "time left"]
    assert set(table.records[0].data) == {column.name for column in table.schema.columns}


def test_the_table_is_bounded_and_leaves_out_what_ended() -> None:
    seen = snapshot(worker("0", committed=False), *(worker(str(n)) for n in range(1000, 1300)))
    table = tick_metadata(Tick(decision="", snapshot=seen))["slurm/allocations"].value
    assert len(table.records) == MAX_ROWS
    assert "0" not in [record.data["job"] for record in table.records]


def test_all_keys_have_the_prefix_and_dagster_takes_every_value() -> None:
    tick = Tick(
        decision="d" * 10_000,
        snapshot=snapshot(worker("2"), not_observed=("Ray is silent.",)),
        result=ReconcileResult(submitted=("9",)),
        problem=PolicyProblem(sentence="failed", detail="Traceback"),
        work={"remaining": 2.5},
    )
    metadata = tick_metadata(tick)
    assert all(key.startswith("slurm/") for key in metadata)
    assert len(metadata["slurm/decision"].value) < 5_000
    assert metadata["slurm/remaining"].value == 2.5
    dg.AssetObservation(asset_key="a", metadata=metadata)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, None), (0, "0:00:00"), (59.9, "0:00:59"), (90_061, "25:01:01")], ids=str
)
def test_durations_are_readable(seconds: float | None, text: str | None) -> None:
    assert duration(seconds) == text


def test_a_tick_that_did_something_is_always_recorded() -> None:
    notes = Notes()
    recorder = Recorder(notes, lambda: 0.0)
    tick = Tick(decision="same", snapshot=snapshot(), result=ReconcileResult(submitted=("9",)))
    for _ in range(3):
        recorder.add(tick)
    assert len(notes.events) == 3
    assert recorder.ticks == 3
    assert list(recorder.submitted) == ["9"]


def test_clocks_that_run_are_no_news() -> None:
    notes = Notes()
    recorder = Recorder(notes, lambda: 0.0)
    for second in range(20):
        seen = snapshot(worker("2", time_left_seconds=1000 - second, idle_seconds=float(second)), observed_at=second)
        recorder.add(Tick(decision="same", snapshot=seen))
    assert len(notes.events) == 1
    changed = attrs.evolve(snapshot(worker("2", state="COMPLETING")), observed_at=30)
    recorder.add(Tick(decision="same", snapshot=changed))
    assert len(notes.events) == 2


def test_the_summary_has_the_most_that_were_there_at_once() -> None:
    recorder = Recorder(Notes(), lambda: 0.0)
    for workers in ((), (worker("2"), worker("3")), (worker("2"),)):
        recorder.add(Tick(decision="", snapshot=snapshot(*workers)))
    assert (recorder.most_workers_live, recorder.most_workers_ready, recorder.most_granted_gpus) == (2, 2, 4)
