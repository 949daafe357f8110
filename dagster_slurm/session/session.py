"""One session: all allocations of one Dagster run, and the three hooks of its policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate, StartProbe
from dagster_slurm.allocations.lifecycle import end_by_name, is_over, live_jobs, open_tokens, plan_end
from dagster_slurm.allocations.result import EndResult
from dagster_slurm.allocations.snapshot import SessionSnapshot, build_snapshot
from dagster_slurm.allocations.workers import effective_shape
from dagster_slurm.errors import LedgerDamaged, LedgerTooNew, SessionNotFound
from dagster_slurm.remote.probes import log_script, read_log, read_starts, starts_script
from dagster_slurm.remote.submission import sbatch_options
from dagster_slurm.session.commit_loop import carry_out
from dagster_slurm.session.estimators import SbatchTestOnlyEstimator, StartEstimator
from dagster_slurm.session.heads import HeadSuccession
from dagster_slurm.session.payloads import PayloadCalls
from dagster_slurm.session.scaling import WorkerScaling

#: Stands where a submission's token would; estimates reserve nothing, so they have none.
_NO_TOKEN = "0" * 32


class AllocationSession(WorkerScaling, HeadSuccession, PayloadCalls):
    """All allocations of one run.

    Every method asks the cluster anew; nothing runs in the background. Get one from
    ``SlurmComputeResource.get_run_allocation_session``.
    """

    @cached_property
    def _estimator(self) -> StartEstimator:
        return SbatchTestOnlyEstimator()

    def inspect(self) -> SessionSnapshot:
        """Observe every allocation: one remote command, one ``squeue``; waits for no allocation.

        A second command asks accounting when a recorded job left the queue and its end is not recorded yet.

        Raises:
            SessionNotFound: the session has no records.
            RemoteError: the login node could not be asked. A silent scheduler is no error: ``certain`` is False.
        """
        observation = self._site.observe()
        return build_snapshot(self._known(observation), observation)

    def keep_alive(self) -> None:
        """Tell the allocations that somebody still cares, as every other method does too."""
        self._site.observe()

    def logs(self, slurm_job_id: str) -> str:
        """Last lines of a job's log; empty when it has none yet.

        Raises:
            SessionNotFound: no allocation of the session has that id.
        """
        record = self._known(self._site.observe()).record(slurm_job_id)
        if record is None:
            raise SessionNotFound(f"The session {self.session_id} has no record of a job {slurm_job_id}.")
        return read_log(self._shell.run(log_script(self._settings, record.token)), self.address)

    def estimate_worker_starts(
        self, candidates: Sequence[SlurmWorkerAllocationConfig], estimator: StartEstimator | None = None
    ) -> Sequence[StartEstimate]:
        """When could each candidate start? One remote command; answers are used again for a minute.

        Raises:
            EstimateBudgetExceeded: more than eight distinct candidates without a recent answer. Nothing was sent.
            ConfigurationError: a candidate that cannot be rendered.
            RemoteError: the login node could not be asked.
        """
        return (estimator or self._estimator).estimate(self, candidates)

    def worker_shape(self, config: SlurmWorkerAllocationConfig | None = None) -> EffectiveShape:
        """The shape that a submission of ``config`` has in this session, inherited settings included."""
        ledger = self._ledger if self._ledger is not None else self._known(self._site.observe())
        return effective_shape(ledger, config)

    def worker_sbatch_options(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> tuple[tuple[str, ...], ...]:
        """The ``sbatch`` options that each candidate would be submitted with; the token stands as zeros."""
        return tuple(sbatch_options(self._settings, self.worker_shape(c), _NO_TOKEN) for c in candidates)

    def probe_starts(self, options: Sequence[tuple[str, ...]]) -> tuple[StartProbe, ...]:
        """Ask ``sbatch --test-only`` about option lists, in one remote command; a dead controller costs two seconds."""
        return read_starts(
            self._shell.run(starts_script(options, self._settings.cluster), timeout_seconds=120),
            len(options),
            self.address,
        )

    def end(self, *, timeout_seconds: float = 30) -> EndResult:
        """End the session: it starts no new work, and every job of its name and our user is cancelled.

        Records that cannot be read do not stand in the way: then the name of the jobs alone decides.

        Returns:
            Whether a listing showed that nothing is left. When not, call it again; nothing was lost.

        Raises:
            RemoteError: the login node could not be asked.
        """
        until = time.monotonic() + timeout_seconds
        while True:
            try:
                result = self._end_once()
            except (LedgerDamaged, LedgerTooNew):
                result = end_by_name(self._site.close_by_name())
            if result.complete or time.monotonic() >= until:
                return result
            time.sleep(0.5)

    def _end_once(self) -> EndResult:
        outcome = carry_out(self._site, lambda o: plan_end(o, self.session_id), even_if_closing=True)
        observation = outcome.observation
        if observation.closing and is_over(observation):
            return EndResult(complete=True)
        live = live_jobs(observation.listing)
        return EndResult(complete=False, live=live, unresolved=len(open_tokens(observation)))

    def close(self) -> None:
        """Close the connection. Ends nothing on the cluster."""
        self._shell.close()
