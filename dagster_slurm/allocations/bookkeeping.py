"""What every decision begins with: open submissions, recorded ends and overdue deadlines, brought up to date."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.conditions import Condition, condition_of, job_of, may_be_live
from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.ledger import AllocationRecord, Ledger, OpenSubmission, Role
from dagster_slurm.allocations.observation import Fate, Observation, SubmissionTrace, tokens_of
from dagster_slurm.allocations.plan import (
    Archive,
    Cancel,
    Drain,
    Effect,
    Forget,
    HeldBack,
    Plan,
    Revoke,
    Submit,
    refusals,
)
from dagster_slurm.slurm.replies import Refused

#: A submission that was sent and left no sign is dropped after this long: longer than any command or message may take.
SETTLE_SECONDS = 120


@attrs.frozen(kw_only=True)
class Books:
    """The ledger brought up to date with one observation.

    Attributes:
        ledger: The new ledger.
        conditions: Condition of each recorded allocation, by job id.
        effects: Cancels of overdue and revoked jobs, retried drains, revocations.
        adopted: Job ids found for open submissions.
        refused: Texts of submissions that the scheduler had refused and nobody had recorded.
        closed: Tokens whose markers can go.
        archived: Ended records that leave the ledger.
    """

    ledger: Ledger
    conditions: dict[str, Condition]
    effects: tuple[Effect, ...]
    adopted: tuple[str, ...]
    refused: tuple[str, ...]
    closed: tuple[str, ...]
    archived: tuple[AllocationRecord, ...]

    @property
    def live_count(self) -> int:
        """Allocations that are live or not known to have ended, open submissions included."""
        records = self.ledger.records()
        live = sum(1 for record in records if may_be_live(record, self.conditions[record.slurm_job_id]))
        return live + len(self.ledger.worker_submissions)

    def full(self, live_per_session: int) -> HeldBack | None:
        """Why no allocation can be added; None while there is room."""
        if self.live_count < live_per_session:
            return None
        sentence = f"A session has at most {live_per_session} live allocations; it has {self.live_count}."
        return HeldBack("limit", sentence)

    def all_effects(self, decided: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """The effects of a plan: upkeep first, then what was decided, then clearing away."""
        effects: list[Effect] = [*self.effects, *decided]
        if self.archived:
            effects.insert(0, Archive(self.archived))
        if self.closed:
            effects.append(Forget(self.closed))
        return tuple(effects)


def plan_with(
    books: Books, ledger: Ledger, effects: tuple[Effect, ...] = (), held_back: tuple[HeldBack, ...] = ()
) -> Plan:
    """A plan of what was decided, with the upkeep of the books."""
    return Plan(
        ledger=ledger,
        effects=books.all_effects(effects),
        held_back=(*refusals(books.refused), *held_back),
        adopted=books.adopted,
        unresolved=tuple(ledger.worker_submissions),
    )


def submitting(
    ledger: Ledger, observation: Observation, token: str, role: Role, shape: EffectiveShape
) -> tuple[Ledger, Submit]:
    """One submission that belongs to no intent, in the ledger and as an effect."""
    submission = OpenSubmission(
        token=token, role=role, intent=None, shape=shape.digest, prepared_at=observation.login_clock, dated=False
    )
    return ledger.with_submission(submission, shape), Submit(token, role, None, shape.digest)


def bring_up_to_date(ledger: Ledger, observation: Observation) -> Books:
    """Bring a ledger up to date with an observation.

    An observation whose listing was not answered changes nothing: unknown is never read as gone.
    """
    if not observation.listing.answered:
        conditions = {record.slurm_job_id: condition_of(record, observation) for record in ledger.records()}
        return Books(ledger=ledger, conditions=conditions, effects=(), adopted=(), refused=(), closed=(), archived=())
    resolved = _resolve_submissions(ledger, observation)
    ledger = resolved.ledger
    conditions = {record.slurm_job_id: condition_of(record, observation) for record in ledger.records()}
    ledger = ledger.map_records(lambda r: _note_condition(r, conditions[r.slurm_job_id], observation.login_clock))
    effects = [*resolved.revocations, *_cancel_revoked(ledger, observation), *_upkeep(ledger, conditions, observation)]
    ledger, archived = ledger.without_old_records(observation.login_clock)
    closed = tuple(sorted(set(observation.traces) - set(ledger.worker_submissions)))
    return Books(
        ledger=ledger,
        conditions=conditions,
        effects=tuple(effects),
        adopted=resolved.adopted,
        refused=resolved.refused,
        # Left-over markers alone are no reason to write.
        closed=closed if ledger != observation.ledger or effects else (),
        archived=archived,
    )


# -- open submissions ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Resolved:
    ledger: Ledger
    adopted: tuple[str, ...]
    refused: tuple[str, ...]
    revocations: tuple[Revoke, ...]


def _resolve_submissions(ledger: Ledger, observation: Observation) -> _Resolved:
    adopted: list[str] = []
    refused: list[str] = []
    revocations: list[Revoke] = []
    by_token: dict[str, str] = {}
    for job in observation.listing.jobs:
        for token in tokens_of(job):
            by_token.setdefault(token, job.slurm_job_id)
    for token, submission in ledger.worker_submissions.items():
        trace = observation.traces.get(token, SubmissionTrace(fate=Fate.MISSING))
        job_id = by_token.get(token) or job_of(trace)
        if trace.fate is Fate.REVOKED:
            # Settled, even when its job came late: that one finds nothing to claim, so it is cancelled, never counted.
            ledger = ledger.without_submission(token)
            continue
        if job_id is not None:
            # An id that stands in a record was used before: that record leaves within an hour, and until then the
            # submission stays open and counts as live.
            if ledger.record(job_id) is None:
                ledger = ledger.with_adopted(token, job_id, trace.submitted_at)
                adopted.append(job_id)
            continue
        revocation = _revocation(submission, trace, observation.login_clock)
        if isinstance(trace.outcome, Refused):
            refused.append(trace.outcome.text)
            ledger = ledger.without_submission(token)
            revocations.append(Revoke(token, trace.fate))
        elif trace.fate is Fate.MISSING and revocation is not None:
            ledger = ledger.without_submission(token)
        elif revocation is not None:
            revocations.append(revocation)
    return _Resolved(ledger=ledger, adopted=tuple(adopted), refused=tuple(refused), revocations=tuple(revocations))


def _revocation(submission: OpenSubmission, trace: SubmissionTrace, now: int) -> Revoke | None:
    """Whether a submission without any sign of a job may be dropped now.

    ``ready`` means that sbatch was not called: the commit that wrote it is over once we hold the lock. ``sent`` may
    still arrive, so it waits; whoever starts late finds the file renamed and exits.
    """
    settled = now - submission.prepared_at >= SETTLE_SECONDS
    if trace.fate is Fate.READY or (trace.fate in (Fate.SENT, Fate.MISSING) and settled):
        return Revoke(submission.token, trace.fate)
    return None


def _cancel_revoked(ledger: Ledger, observation: Observation) -> tuple[Effect, ...]:
    """Jobs that bear a dropped token: cancelled, never adopted or counted."""
    revoked = set(ledger.revoked_tokens)
    late = tuple(
        job.slurm_job_id
        for job in observation.listing.jobs
        if tokens_of(job) & revoked and Condition(state=job.state).live is not False
    )
    return (Cancel(late, only_pending=False),) if late else ()


# -- recorded allocations --------------------------------------------------------------------------

#: It gives its nodes back and can do nothing more, but how it ended is not said yet.
_NOT_FINAL = "COMPLETING"


def _note_condition(record: AllocationRecord, condition: Condition, now: int) -> AllocationRecord:
    if condition.absent_but_live:
        return record if record.absent_since is not None else attrs.evolve(record, absent_since=now)
    if condition.live is False and condition.state not in (record.final_state, _NOT_FINAL):
        # The listing can still name the end of what was only known to be gone.
        ended_at = now if record.ended_at is None else record.ended_at
        return attrs.evolve(record, final_state=condition.state, ended_at=ended_at)
    if condition.live and (record.final_state is not None or record.absent_since is not None):
        # It is back: an admin requeued it, or the listing had lost it. Same record, same deadline.
        return attrs.evolve(record, final_state=None, ended_at=None, absent_since=None)
    return record


def _upkeep(ledger: Ledger, conditions: dict[str, Condition], observation: Observation) -> tuple[Effect, ...]:
    """Deadlines of the whole session: cancel what is overdue, repeat a drain or cancel that did not take hold.

    A predecessor that still lives, or that came back, goes as well: another allocation leads.
    """
    now = observation.login_clock
    overdue = [r.slurm_job_id for r in ledger.predecessors if conditions[r.slurm_job_id].live]
    still_pending: list[str] = []
    drains: list[Effect] = []
    for record in ledger.records():
        condition = conditions[record.slurm_job_id]
        if record.drain_deadline is None or condition.live is not True or record.slurm_job_id in overdue:
            continue
        if now >= record.drain_deadline:
            overdue.append(record.slurm_job_id)
        elif condition.pending:
            still_pending.append(record.slurm_job_id)
        elif record.token not in observation.drains:
            drains.append(drain_of(record, record.drain_deadline, now))
    effects = list(drains)
    if still_pending:
        effects.insert(0, Cancel(tuple(still_pending), only_pending=True))
    if overdue:
        effects.insert(0, Cancel(tuple(overdue), only_pending=False))
    return tuple(effects)


def drain_of(record: AllocationRecord, deadline: int, now: int) -> Drain:
    """The drain of a released allocation with the time that is left."""
    return Drain(record.token, record.slurm_job_id, deadline, deadline - now)
