"""Is this allocation alive? Read from one observation, unknown kept apart from ended."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.observation import Observation, tokens_of
from dagster_slurm.slurm.replies import ListedJob
from dagster_slurm.slurm.states import StateClass, state_class

ENDED = "ENDED"

#: An allocation that accounting still calls live is given up after this long out of the listing (two looks).
ABSENT_SETTLE_SECONDS = 60

#: A job that reported from its node this recently is not given up, whatever the listing lacks.
REPORT_OVERRULES_SECONDS = 30


@attrs.frozen(kw_only=True)
class Condition:
    """What an observation says about one recorded allocation.

    Attributes:
        state: Slurm's word, the final state from accounting, ``"ENDED"``; None when it could not be observed.
        job: The scheduler's row, when there is one.
        absent_but_live: Accounting calls it live although the listing lacks it: not yet believed to have ended.
    """

    state: str | None
    job: ListedJob | None = None
    absent_but_live: bool = False

    @property
    def kind(self) -> StateClass | None:
        """Class of the state; None when the state is unknown."""
        return None if self.state is None else state_class(self.state)

    @property
    def live(self) -> bool | None:
        """True when pending, running or in a state we do not know; False when ended; None when unknown."""
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
    if job is None or record.token is None:
        return job
    carried = tokens_of(job)
    return job if not carried or record.token in carried else None


def recently_reported(record: AllocationRecord, observation: Observation) -> bool:
    """Whether an agent of this job wrote its report within the last seconds."""
    return any(
        report.age_seconds <= REPORT_OVERRULES_SECONDS
        for (job_id, _), report in observation.nodes.items()
        if job_id == record.slurm_job_id
    )


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
    if row is None or row.state is None or (row.name is not None and row.name != _job_name(observation)):
        return Condition(state=ENDED)
    if state_class(row.state) is StateClass.ENDED:
        return Condition(state=row.state)
    waited = None if record.absent_since is None else observation.login_clock - record.absent_since
    if waited is not None and waited >= ABSENT_SETTLE_SECONDS and not recently_reported(record, observation):
        return Condition(state=ENDED)
    return Condition(state=None, absent_but_live=True)


def _job_name(observation: Observation) -> str | None:
    return None if observation.ledger is None else observation.ledger.job_name


def unanswered_ids(observation: Observation) -> tuple[str, ...]:
    """Recorded jobs whose end is not recorded and which a good listing lacks: what accounting is asked about."""
    if observation.ledger is None or not observation.listing.answered:
        return ()
    return tuple(
        record.slurm_job_id
        for record in observation.ledger.records()
        if record.final_state is None and row_of(record, observation) is None
    )
