"""What a run has written to Dagster's event log: read as it grows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import attrs
import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus, EventLogEntry

FINISHED = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
# The line that payload/search.py logs through Dagster Pipes.
_TASKS_DONE = re.compile(r"\b(\d+) of (\d+) tasks done")


@attrs.frozen
class RunProgress:
    """What is known of a run so far.

    Attributes:
        done: Finished tasks; None before the payload has said so.
        total: All tasks; None before the payload has said so.
        failure: What the error says that failed a step or the run; None when none has.
        metadata: What the asset's materialization carries; empty before it is there.
    """

    done: int | None = None
    total: int | None = None
    failure: str | None = None
    metadata: Mapping[str, object] = attrs.field(factory=dict)

    @property
    def tasks(self) -> str:
        """The tasks in words."""
        return "no task reported yet" if self.total is None else f"tasks {self.done}/{self.total} done"


def advance(progress: RunProgress, entries: Iterable[EventLogEntry]) -> RunProgress:
    """The progress after further entries of the run's log."""
    for entry in entries:
        event = entry.dagster_event
        counted = _TASKS_DONE.search(entry.user_message or "")
        if counted:
            progress = attrs.evolve(progress, done=int(counted[1]), total=int(counted[2]))
        if event is None:
            continue
        if event.event_type is DagsterEventType.STEP_FAILURE and event.step_failure_data.error is not None:
            progress = attrs.evolve(progress, failure=root_cause(event.step_failure_data.error))
        elif event.event_type is DagsterEventType.RUN_FAILURE and progress.failure is None:
            progress = attrs.evolve(progress, failure=event.message)
        elif event.event_type is DagsterEventType.ASSET_MATERIALIZATION:
            metadata = event.step_materialization_data.materialization.metadata
            progress = attrs.evolve(
                progress, metadata={**progress.metadata, **{name: value.value for name, value in metadata.items()}}
            )
    return progress


class ChainedError(Protocol):
    """An error as Dagster's event log keeps it."""

    @property
    def message(self) -> str:
        """What it says."""

    @property
    def cause(self) -> ChainedError | None:
        """The error it was raised from."""


def root_cause(error: ChainedError) -> str:
    """What the innermost of the chained errors says."""
    while error.cause is not None:
        error = error.cause
    return error.message.strip()


class RunLog:
    """Follows one run of the Dagster instance in a DAGSTER_HOME."""

    def __init__(self, home: Path, run_id: str) -> None:
        self._instance = DagsterInstance.from_config(str(home))
        self._run_id = run_id
        self._cursor: str | None = None
        self.progress = RunProgress()

    def close(self) -> None:
        """Close the instance's database."""
        self._instance.dispose()

    def read(self) -> DagsterRunStatus:
        """Read what is new; the run's status as it was before reading, so that its last entries are not missed."""
        run = self._instance.get_run_by_id(self._run_id)
        status = run.status if run is not None else DagsterRunStatus.NOT_STARTED
        while True:
            page = self._instance.get_records_for_run(self._run_id, cursor=self._cursor, limit=500)
            self._cursor = page.cursor
            self.progress = advance(self.progress, (record.event_log_entry for record in page.records))
            if not page.has_more:
                return status

    def materialized(self, asset: str) -> bool:
        """Whether the asset's latest materialization is of this run."""
        event = self._instance.get_latest_materialization_event(dg.AssetKey(asset))
        return event is not None and event.run_id == self._run_id
