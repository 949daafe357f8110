"""The snapshot's table for people."""

from __future__ import annotations

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.allocations.table import snapshot_table

HEAD = AllocationSnapshot(slurm_job_id="7", role="head", state="RUNNING", nodes=("n1",), ready=True, draining=False)


def session(*workers: AllocationSnapshot, head: AllocationSnapshot = HEAD, **changes: object) -> SessionSnapshot:
    values: dict[str, object] = {"certain": True, "successor": None, **changes}
    return SessionSnapshot(
        session_id="s",
        observed_at=1000,
        head=head,
        allocations=(head, *workers),
        **values,  # type: ignore[arg-type]
    )


def test_each_allocation_is_a_line_and_empty_columns_are_left_out() -> None:
    waiting = AllocationSnapshot(slurm_job_id="8", role="worker", intent="w", state="PENDING", reason="Priority")
    lines = snapshot_table(session(waiting)).splitlines()
    assert lines[0].split() == ["job", "role", "intent", "state", "waits", "for", "nodes", "ready", "draining"]
    assert lines[2].split() == ["7", "head", "RUNNING", "n1", "yes", "no"]
    assert lines[3].split() == ["8", "worker", "w", "PENDING", "Priority"]


def test_times_and_gpus_show_when_they_are_known() -> None:
    leaving = AllocationSnapshot(
        slurm_job_id="9",
        role="worker",
        state="RUNNING",
        granted_gpus=0,
        time_left_seconds=3725,
        drain_deadline=1090,
        draining=True,
    )
    line = snapshot_table(session(leaving)).splitlines()[3]
    assert line.split() == ["9", "worker", "RUNNING", "0", "yes", "1:02:05", "0:01:30"]


def test_what_is_not_known_is_said_in_words() -> None:
    unknown = AllocationSnapshot(slurm_job_id=None, role="head")
    text = snapshot_table(
        session(
            head=unknown,
            certain=False,
            not_observed=("The scheduler did not answer: x",),
            unresolved=2,
            unrecorded=("44",),
            closing=True,
        )
    )
    assert "not known" in text.splitlines()[2]
    assert text.splitlines()[3:] == [
        "The scheduler did not answer: x",
        "2 submission(s) have no known outcome yet; they count as live.",
        "Jobs of this session's name that nobody recorded: 44.",
        "The session is ending.",
    ]
