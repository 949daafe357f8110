"""A simulated Slurm with virtual time: what a session needs of a scheduler, and the ways in which it misbehaves."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dagster_slurm.slurm.replies import (
    AccountingReply,
    AccountingRow,
    Ambiguous,
    ListedJob,
    Listing,
    Refused,
    Submitted,
)
from dagster_slurm.slurm.states import StateClass, state_class

UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


#: The user that everything of a session runs as.
OURSELVES = "sim"


@attrs.define(kw_only=True)
class SimulatedJob:
    """One job. ``works`` is set when it claimed its submission: only then does it do anything.

    ``held`` keeps it pending until somebody releases it. ``user`` is whose it is.
    """

    slurm_job_id: str
    name: str
    token: str
    comment: str
    submitted_at: int
    time_limit_seconds: int
    held: bool = False
    user: str = OURSELVES
    state: str = "PENDING"
    started_at: int | None = None
    ended_at: int | None = None
    works: bool = False

    @property
    def live(self) -> bool:
        """Whether it is pending or running."""
        return state_class(self.state) is not StateClass.ENDED


@attrs.define
class SimulatedScheduler:
    """A scheduler in memory.

    Attributes:
        now: Virtual clock, epoch seconds.
        jobs: Every job that was ever created, by id.
        silent: No command is answered.
        submission_answers: What the next submissions meet, in order: "ok", "refused", "lost" (the job exists, the
            client hears a time-out), "nothing" (a time-out, no job) or "late" (a time-out, the job comes with
            ``deliver_late``).
        min_job_age_seconds: How long an ended job stays in the listing.
        accounting: Whether accounting answers.
        late: Jobs whose submission was sent and that do not exist yet.
        hidden: Jobs that live and that the listing lacks.
    """

    now: int = 1_800_000_000
    jobs: dict[str, SimulatedJob] = attrs.field(factory=dict)
    silent: bool = False
    submission_answers: list[str] = attrs.field(factory=list)
    min_job_age_seconds: int = 300
    accounting: bool = True
    late: list[SimulatedJob] = attrs.field(factory=list)
    hidden: set[str] = attrs.field(factory=set)
    _next_id: int = 1

    # -- commands ----------------------------------------------------------------------------------

    def submit(
        self, name: str, token: str, comment: str, time_limit_seconds: int, *, held: bool = False, user: str = OURSELVES
    ) -> Submitted | Refused | Ambiguous:
        """``sbatch``."""
        answer = self.submission_answers.pop(0) if self.submission_answers else "ok"
        if self.silent or answer == "nothing":
            return Ambiguous(TIMED_OUT)
        if answer == "refused":
            return Refused("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        job = SimulatedJob(
            slurm_job_id=str(self._next_id),
            name=name,
            token=token,
            comment=comment,
            submitted_at=self.now,
            time_limit_seconds=time_limit_seconds,
            held=held,
            user=user,
        )
        self._next_id += 1
        if answer == "late":
            self.late.append(job)
            return Ambiguous(TIMED_OUT)
        self.jobs[job.slurm_job_id] = job
        return Ambiguous(TIMED_OUT) if answer == "lost" else Submitted(job.slurm_job_id, None)

    def cancel(self, job_ids: tuple[str, ...], name: str, *, only_pending: bool) -> None:
        """``scancel``; silent about what it did, as the real one."""
        for job_id in () if self.silent else job_ids:
            job = self.jobs.get(job_id)
            if job is None or job.name != name or job.user != OURSELVES or not job.live:
                continue
            if job.state == "PENDING" or not only_pending:
                self.end(job_id, "CANCELLED")

    def cancel_named(self, name: str) -> None:
        """``scancel --name``."""
        self.cancel(tuple(self.jobs), name, only_pending=False)

    def listing(self, name: str) -> Listing:
        """``squeue`` by name."""
        if self.silent:
            return Listing(answered=False, jobs=(), error=UNREACHABLE)
        shown = [job for job in self.jobs.values() if job.name == name and job.user == OURSELVES and self._shown(job)]
        return Listing(answered=True, jobs=tuple(self._row(job) for job in shown), error=None)

    def listing_by_id(self, job_ids: tuple[str, ...]) -> Listing:
        """``squeue`` by id, whatever the jobs are called."""
        if self.silent:
            return Listing(answered=False, jobs=(), error=UNREACHABLE)
        shown = [self.jobs[job_id] for job_id in job_ids if job_id in self.jobs and self._shown(self.jobs[job_id])]
        return Listing(answered=True, jobs=tuple(self._row(job) for job in shown), error=None)

    def account(self, job_ids: tuple[str, ...]) -> AccountingReply:
        """``sacct`` by id."""
        if not self.accounting:
            return AccountingReply(answered=False, rows={}, error="Slurm accounting storage is disabled")
        rows = {job_id: self._account_row(self.jobs[job_id]) for job_id in job_ids if job_id in self.jobs}
        return AccountingReply(answered=True, rows=rows, error=None)

    # -- the world ---------------------------------------------------------------------------------

    def advance(self, seconds: int) -> None:
        """Let time pass; running jobs meet their time limit."""
        self.now += seconds
        for job in self.jobs.values():
            running = job.state == "RUNNING" and job.started_at is not None
            if running and self.now - (job.started_at or 0) >= job.time_limit_seconds:
                self.end(job.slurm_job_id, "TIMEOUT")

    def start(self, job_id: str, claim: Callable[[SimulatedJob], bool]) -> None:
        """Start a pending job; ``claim`` is its first act and tells whether it goes on."""
        job = self.jobs[job_id]
        if job.state != "PENDING" or job.held:
            return
        job.state, job.started_at = "RUNNING", self.now
        job.works = claim(job)
        if not job.works:
            self.end(job_id, "COMPLETED")

    def end(self, job_id: str, state: str) -> None:
        """End a job."""
        job = self.jobs[job_id]
        job.state, job.ended_at, job.works = state, self.now, False

    def requeue(self, job_id: str) -> None:
        """Put a running job back into the queue; its submit time moves."""
        job = self.jobs[job_id]
        job.state, job.started_at, job.works, job.submitted_at = "PENDING", None, False, self.now

    def deliver_late(self) -> None:
        """Jobs whose submission was still on its way appear."""
        for job in self.late:
            job.submitted_at = self.now
            self.jobs[job.slurm_job_id] = job
        self.late.clear()

    def _shown(self, job: SimulatedJob) -> bool:
        if job.slurm_job_id in self.hidden:
            return False
        return job.ended_at is None or self.now - job.ended_at < self.min_job_age_seconds

    def _row(self, job: SimulatedJob) -> ListedJob:
        running = job.state == "RUNNING" and job.started_at is not None
        left = job.time_limit_seconds - (self.now - (job.started_at or 0)) if running else None
        return ListedJob(
            slurm_job_id=job.slurm_job_id,
            name=job.name,
            state=job.state,
            reason=("JobHeldUser" if job.held else "Resources") if job.state == "PENDING" else None,
            time_left_seconds=left,
            time_limit_seconds=job.time_limit_seconds,
            submitted_at=job.submitted_at,
            expected_start_at=None,
            nodes=(f"n{job.slurm_job_id}",) if running else (),
            requested_nodes=1,
            tres="cpu=1,mem=100M,node=1,billing=1",
            tres_per_node=None,
            partition="main",
            qos=None,
            account=None,
            comment=job.comment,
            command=f"/sim/submissions/{job.token}/batch.sh",
            user=job.user,
        )

    def _account_row(self, job: SimulatedJob) -> AccountingRow:
        return AccountingRow(state=job.state, name=job.name, submitted_at=job.submitted_at, nodes=(), exit_code=None)
