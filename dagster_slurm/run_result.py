"""What ``SlurmComputeResource.run`` returns."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_slurm.recording import Recorder


class SlurmRunResult(dg.PipesClientCompletedInvocation):
    """A payload that ended well. All methods of Dagster's own class are there as well.

    Attributes:
        payload_exit_code: Its exit status, 0.
        payload_id: Its directory's name below ``payloads`` in the session's directory.
        restarts: How often it was run again because its head had ended.
        ticks: How often the session was looked at.
        submitted: Job ids of the worker allocations that the step submitted.
        released: Job ids of those that it released.
        most_workers_live: Most worker allocations that were pending or running at once.
        duration_seconds: From the start of the payload's upload to its end.
    """

    def __init__(
        self,
        pipes_session: dg.PipesSession,
        recorder: Recorder,
        *,
        payload_id: str,
        restarts: int,
        payload_exit_code: int | None,
        duration_seconds: float,
        session_dir: str,
    ) -> None:
        self.payload_id = payload_id
        self.restarts = restarts
        self.payload_exit_code = payload_exit_code
        self.ticks = recorder.ticks
        self.submitted = tuple(recorder.submitted)
        self.released = tuple(recorder.released)
        self.most_workers_live = recorder.most_workers_live
        self.duration_seconds = duration_seconds
        summary: dict[str, Any] = {
            "slurm/ticks": recorder.ticks,
            "slurm/most_workers_live": recorder.most_workers_live,
            "slurm/most_workers_ready": recorder.most_workers_ready,
            "slurm/workers_submitted": len(self.submitted),
            "slurm/workers_released": len(self.released),
            "slurm/duration_seconds": round(duration_seconds, 1),
            "slurm/session_directory": session_dir,
            "slurm/payload": payload_id,
        }
        if restarts:
            summary["slurm/restarts_with_head"] = restarts
        if recorder.most_granted_gpus is not None:
            summary["slurm/most_granted_gpus"] = recorder.most_granted_gpus
        super().__init__(pipes_session, metadata={**summary, **recorder.summary()})

    def materialize_result(self) -> dg.MaterializeResult[Any]:
        """The asset's result: what the payload reported through Pipes, and the summary of its workers.

        Raises:
            DagsterPipesError: the payload reported several assets; use ``get_results`` for those.
        """
        return self.get_materialize_result()
