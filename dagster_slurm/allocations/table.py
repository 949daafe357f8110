"""A snapshot as a table for people, in a terminal or a log."""

from __future__ import annotations

import datetime

from tabulate import tabulate

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot

_HEADERS = ("job", "role", "intent", "state", "waits for", "nodes", "GPUs", "ready", "draining", "left", "cancelled in")


def snapshot_table(snapshot: SessionSnapshot) -> str:
    """One line for each allocation, and below it whatever else is worth knowing.

    An empty cell is a value that was not observed or does not apply.
    """
    rows = [_row(allocation, snapshot.observed_at) for allocation in snapshot.allocations]
    shown = [column for column in range(len(_HEADERS)) if column < 4 or any(row[column] for row in rows)]
    table = tabulate(
        [[row[column] for column in shown] for row in rows],
        headers=[_HEADERS[column] for column in shown],
        disable_numparse=True,
    )
    return "\n".join([table, *_remarks(snapshot)])


def _row(allocation: AllocationSnapshot, now: int) -> tuple[str, ...]:
    deadline = allocation.drain_deadline
    nodes = ",".join(allocation.nodes)
    return (
        allocation.slurm_job_id or "?",
        allocation.role,
        allocation.intent or "",
        allocation.state or "not known",
        allocation.reason or "",
        nodes,
        "" if allocation.granted_gpus is None else str(allocation.granted_gpus),
        _said(allocation.ready),
        _said(allocation.draining),
        _duration(allocation.time_left_seconds),
        "" if deadline is None else _duration(max(0, deadline - now)),
    )


def _said(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _duration(seconds: int | None) -> str:
    return "" if seconds is None else str(datetime.timedelta(seconds=seconds))


def _remarks(snapshot: SessionSnapshot) -> list[str]:
    found = list(snapshot.not_observed)
    if snapshot.unresolved:
        found.append(f"{snapshot.unresolved} submission(s) have no known outcome yet; they count as live.")
    if snapshot.unrecorded:
        found.append(f"Jobs of this session's name that nobody recorded: {', '.join(snapshot.unrecorded)}.")
    if snapshot.closing:
        found.append("The session is ending.")
    return found
