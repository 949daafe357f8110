"""Is this allocation alive? Read from one observation, unknown kept apart from ended."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.observation import Fate, Observation, SubmissionTrace, tokens_of
from dagster_slurm.slurm.replies import AccountingRow, ListedJob, Listing, Submitted
from dagster_slurm.slurm.states import ENDED, StateClass, state_class

#: An allocation that accounting still calls live is given up after this long out of the listing (two looks).
ABSENT_SETTLE_SECONDS = 60

#: Accounting has the controller's clock, we the login node's: only a larger difference tells two jobs of one id apart.
CLOCKS_DIFFER_SECONDS = 3600

#: A job that reported from its node this recently is not given up, whatever the listing lacks.
REPORT_OVERRULES_SECONDS = 30


@attrs.frozen(kw_only=True)
class Condition:
    """What an observation says about one recorded allocation.

    Attributes:
        state: Slurm's word, the final state from accounting, ``"ENDED"``; None when it could not be observed.
        job: The scheduler's row, when there is one.
        absent_but_live: Accounting calls it live although the listing lacks it: not yet believed to have ended.
        kind: Class of the state; None when the state is unknown.
        live: True when pending, running or in a state we do not know; False when ended; None when unknown.
    """

    state: str | None
    job: ListedJob | None = None
    absent_but_live: bool = False

    kind: StateClass | None = attrs.field(init=False)
    live: bool | None = attrs.field(init=False)

    # Both are asked for again and again for each of hundreds of allocations.
    @kind.default
    def _kind(self) -> StateClass | None:
        return None if self.state is None else state_class(self.state)

    @live.default
    def _live(self) -> bool | None:
        return None if self.kind is None else self.kind is not StateClass.ENDED

    @property
    def pending(self) -> bool:
        """Whether it is known to be pending."""
        return self.kind is StateClass.PENDING

    @property
    def running(self) -> bool:
        """Whether it is known to be running."""
        return self.kind is StateClass.RUNNING


def row_of(record: AllocationRecord, observation: Observation) -> ListedJob | None:
    """The scheduler's row of a recorded job; a job id that was used again by another submission is not it."""
    job = observation.listed(record.slurm_job_id)
    if job is None:
        return None
    carried = tokens_of(job)
    return job if not carried or record.token in carried else None


def recently_reported(record: AllocationRecord, observation: Observation) -> bool:
    """Whether an agent of this job wrote its report within the last seconds."""
    reports = observation.reports_of(record.slurm_job_id)
    return any(report.age_seconds <= REPORT_OVERRULES_SECONDS for report in reports)


def condition_of(record: AllocationRecord, observation: Observation) -> Condition:
    """Read one allocation's condition.

    A row of the listing decides. Absence means anything only in a listing that was answered; then a state that
    was recorded, then accounting's final state, then ``ENDED``. Accounting that still calls the job live leaves it
    unknown until it was absent from two listings a minute apart.
    """
    if not observation.listing.answered:
        return Condition(state=None)
    job = row_of(record, observation)
    if job is not None:
        return Condition(state=job.state, job=job)
    if record.final_state is not None:
        return Condition(state=record.final_state)
    row = None if observation.accounting is None else observation.accounting.rows.get(record.slurm_job_id)
    if row is None or row.state is None or not _is_row_of(record, row, observation):
        return Condition(state=ENDED)
    if state_class(row.state) is StateClass.ENDED:
        return Condition(state=row.state)
    waited = None if record.absent_since is None else observation.login_clock - record.absent_since
    if waited is not None and waited >= ABSENT_SETTLE_SECONDS and not recently_reported(record, observation):
        return Condition(state=ENDED)
    return Condition(state=None, absent_but_live=True)


def may_be_live(record: AllocationRecord, condition: Condition) -> bool:
    """Whether it counts as live: it is, or nobody knows and no end of it is recorded."""
    return record.final_state is None if condition.live is None else condition.live


def _is_row_of(record: AllocationRecord, row: AccountingRow, observation: Observation) -> bool:
    """Whether accounting speaks of this job and not of an older one with the same id."""
    name = None if observation.ledger is None else observation.ledger.job_name
    if row.name is not None and row.name != name:
        return False
    if row.submitted_at is None or record.submitted_at is None:
        return True
    return row.submitted_at >= record.submitted_at - CLOCKS_DIFFER_SECONDS


def job_of(trace: SubmissionTrace) -> str | None:
    """The job that a submission's files name, or None."""
    if isinstance(trace.outcome, Submitted):
        return trace.outcome.slurm_job_id
    return trace.started_job_id if trace.fate is Fate.STARTED else None


def unanswered_ids(observation: Observation) -> tuple[str, ...]:
    """Jobs whose end is not recorded and which a good listing lacks: what accounting is asked about.

    Those that only the files of an open submission name are among them: they are recorded by the next decision.
    """
    if observation.ledger is None or not observation.listing.answered:
        return ()
    unended = [record for record in observation.ledger.records() if record.final_state is None]
    recorded = [record.slurm_job_id for record in unended if row_of(record, observation) is None]
    traced = [job_of(observation.traces[t]) for t in observation.ledger.worker_submissions if t in observation.traces]
    new = [job_id for job_id in traced if job_id is not None and observation.listed(job_id) is None]
    return tuple(dict.fromkeys((*recorded, *new)))


def with_absent(observation: Observation, by_id: Listing) -> Observation:
    """Add what a second question, by id, found of the jobs that the listing by name lacks.

    A job that somebody renamed is still ours: its token says so. Without an answer nothing is known to be absent, so
    the whole look counts as not answered.
    """
    if not by_id.answered:
        return attrs.evolve(observation, listing=attrs.evolve(by_id, jobs=()))
    ledger = observation.ledger
    tokens = set() if ledger is None else {*(r.token for r in ledger.records()), *ledger.worker_submissions}
    ours = (job for job in by_id.jobs if tokens_of(job) & tokens and observation.listed(job.slurm_job_id) is None)
    listing = observation.listing
    return attrs.evolve(observation, listing=attrs.evolve(listing, jobs=(*listing.jobs, *ours)))
