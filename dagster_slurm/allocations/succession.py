"""Who leads next: queue a successor, promote it, elect another head. Planners, pure.

An election takes two commits. The first claims an allocation; its agent reads that in the ledger and starts Ray's head
beside the old one. The second publishes it as the head once Ray is up there: it is decided on the ledger that holds
the claim and refused when anything changed meanwhile, so one head comes of it whatever the number of processes. Who
lost reads that in the ledger too and stops its Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from dagster_slurm.allocations.bookkeeping import Books, bring_up_to_date, plan_with, submitting
from dagster_slurm.allocations.conditions import condition_of
from dagster_slurm.allocations.config import INHERIT, EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.allocations.election import (
    CLAIM_LIMIT_SECONDS,
    ENDED,
    LEADER_FAILURES_ALLOWED,
    Claim,
    ClaimState,
    best_leader,
    claim_of,
    claim_state,
    failures_of,
    head_need,
    is_on_its_way,
)
from dagster_slurm.allocations.ledger import HEAD, SUCCESSOR, WORKER, AllocationRecord, Ledger
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CLOSING, Cancel, HeldBack, HeldBackReasons, Plan, scheduler_silent


@attrs.frozen(kw_only=True)
class HeadResult:
    """Where the session's head stands after a call.

    Attributes:
        standing: "leads": the head runs. "claimed": an allocation was claimed and brings up Ray's head; call again.
            "queued": a head or successor waits for Slurm. "none": there is none. "unknown": nobody could tell.
        head_job_id: The head by the ledger; it may have ended. None when none is recorded.
        claimed: The claimed allocation, or None.
        submitted: Job ids of what this call submitted: a new head, or a successor.
        held_back: What was asked for and not done; empty (false) when there is nothing.
    """

    standing: str
    head_job_id: str | None
    claimed: str | None = None
    submitted: tuple[str, ...] = ()
    held_back: HeldBackReasons = attrs.field(factory=HeldBackReasons)


def head_shape(ledger: Ledger) -> EffectiveShape | None:
    """What a new head is submitted with: the session's head shape, else that of the head that is recorded."""
    digest = ledger.head_template or (None if ledger.head is None else ledger.head.shape)
    return None if digest is None else ledger.shapes.get(digest)


def successor_shape(ledger: Ledger, config: SlurmWorkerAllocationConfig | None) -> EffectiveShape:
    """The head's shape, changed by what ``config`` states. It stays a head that takes no work, if it was one.

    Raises:
        ConfigurationError: what it inherits does not go together with what it states.
    """
    base = head_shape(ledger)
    shape = inherit(config, base)
    stated = config is not None and config.head_only is not INHERIT
    return shape if base is None or stated else attrs.evolve(shape, head_only=base.head_only)


# -- a successor -----------------------------------------------------------------------------------


def plan_successor(
    ledger: Ledger, observation: Observation, shape: EffectiveShape, tokens: Sequence[str], live_per_session: int
) -> Plan:
    """Queue the next head, unless one is queued, runs, or may be on its way.

    Args:
        ledger: The ledger of the observation.
        observation: A look that was just taken.
        shape: Its shape.
        tokens: Tokens of this call's attempts, the newest last; one that the ledger knows was submitted or dropped.
        live_per_session: Most live allocations of the session.
    """
    reason = _why_nothing(observation)
    if reason is not None:
        return Plan(ledger=ledger, held_back=(reason,))
    books = bring_up_to_date(ledger, observation)
    former = books.ledger.successor
    lives = former is not None and books.conditions[former.slurm_job_id].live is not False
    on_its_way = any(s.role == SUCCESSOR for s in books.ledger.worker_submissions.values())
    if lives or on_its_way or not books.ledger.known_tokens.isdisjoint(tokens):
        return plan_with(books, books.ledger)
    full = books.full(live_per_session)
    if full is not None:
        return plan_with(books, books.ledger, (), (full,))
    with_new, submit = submitting(books.ledger, observation, tokens[-1], SUCCESSOR, shape)
    return plan_with(books, with_new, (submit,))


def plan_promotion(ledger: Ledger, observation: Observation, nonce: str) -> Plan:
    """One step of making the running successor the head: claim it, then publish it."""
    reason = _why_nothing(observation)
    if reason is not None:
        return Plan(ledger=ledger, held_back=(reason,))
    books = bring_up_to_date(ledger, observation)
    successor, claim = books.ledger.successor, claim_of(books.ledger)
    if successor is None:
        return plan_with(books, books.ledger, (), (HeldBack("no_successor", "There is no successor to promote."),))
    if claim is not None:
        return _go_on(books, observation, claim)
    if is_on_its_way(books.ledger):
        sentence = "A new head was submitted and is not recorded yet; it takes the head's place first."
        return plan_with(books, books.ledger, (), (HeldBack("unresolved", sentence),))
    condition = books.conditions[successor.slurm_job_id]
    if condition.state != "RUNNING" or successor.drain_deadline is not None:
        sentence = f"The successor, job {successor.slurm_job_id}, cannot lead: {condition.state or 'state unknown'}."
        return plan_with(books, books.ledger, (), (HeldBack("not_running", sentence),))
    return plan_with(books, _claiming(books.ledger, successor, nonce, observation))


# -- an election -----------------------------------------------------------------------------------


def plan_ensure_head(ledger: Ledger, observation: Observation, tokens: Iterator[str]) -> Plan:
    """One step towards a head that leads: nothing, a claim, a publication, or a new head job.

    Args:
        ledger: The ledger of the observation.
        observation: A look that was just taken. One that the scheduler did not answer changes nothing.
        tokens: Fresh 128-bit hex, for a claim's nonce or a submission.
    """
    reason = _why_nothing(observation)
    if reason is not None:
        return Plan(ledger=ledger, held_back=(reason,))
    books = bring_up_to_date(ledger, observation)
    need, claim = head_need(books, observation), claim_of(books.ledger)
    if claim is not None:
        successor = books.ledger.successor
        promoted = successor is not None and claim.slurm_job_id == successor.slurm_job_id
        # The claim of a worker falls when the head turns out to be well; that of a successor is also a promotion.
        if need is not None or promoted:
            return _go_on(books, observation, claim)
    books = attrs.evolve(books, ledger=attrs.evolve(books.ledger, election=None))
    return plan_with(books, books.ledger) if need is None else _elect(books, observation, need, tokens)


def _go_on(books: Books, observation: Observation, claim: Claim) -> Plan:
    """Publish what was claimed once it is up, or give the claim up; the next step elects again."""
    state = claim_state(claim, books, observation)
    if state is ClaimState.COMING:
        return plan_with(books, books.ledger)
    if state is ClaimState.UP:
        return _publish(books, claim.slurm_job_id)
    ledger = attrs.evolve(books.ledger, election=None)
    if state is ClaimState.VOID:
        return plan_with(books, ledger)
    failures = ledger.failed_leaders.get(claim.slurm_job_id, 0) + 1
    ledger = attrs.evolve(ledger, failed_leaders={**ledger.failed_leaders, claim.slurm_job_id: failures})
    sentence = f"Job {claim.slurm_job_id} did not bring up Ray's head within {CLAIM_LIMIT_SECONDS} s of its claim."
    return plan_with(books, ledger, (), (HeldBack("leader_failed", sentence),))


def _publish(books: Books, slurm_job_id: str) -> Plan:
    """The claimed allocation is the head; the one before is cancelled, now and by every later call while it lives."""
    ledger, former = books.ledger, books.ledger.head
    leader = ledger.record(slurm_job_id)
    workers = tuple(record for record in ledger.workers if record.slurm_job_id != slurm_job_id)
    recorded = {record.slurm_job_id for record in ledger.records()}
    published = attrs.evolve(
        ledger,
        head=leader,
        successor=None if ledger.successor == leader else ledger.successor,
        workers=workers,
        predecessors=(*ledger.predecessors, *(() if former is None else (former,))),
        election=None,
        failed_leaders={job_id: n for job_id, n in ledger.failed_leaders.items() if job_id in recorded},
    )
    lives = former is not None and books.conditions[former.slurm_job_id].live
    effects = (Cancel((former.slurm_job_id,), only_pending=False),) if former is not None and lives else ()
    return plan_with(books, published, effects)


def _elect(books: Books, observation: Observation, need: str, tokens: Iterator[str]) -> Plan:
    ledger = books.ledger
    if is_on_its_way(ledger):
        return plan_with(books, ledger)
    leader = best_leader(books, observation, need)
    if leader is not None:
        return plan_with(books, _claiming(ledger, leader, next(tokens), observation))
    if need != ENDED or _awaits_successor(books):
        return plan_with(books, ledger)
    shape = head_shape(ledger)
    if shape is None:
        return plan_with(books, ledger, (), (HeldBack("no_head", "No shape of a head is recorded to submit one."),))
    with_new, submit = submitting(ledger, observation, next(tokens), HEAD, shape)
    return plan_with(books, with_new, (submit,))


def _awaits_successor(books: Books) -> bool:
    """Whether a successor is queued, or starts, and has not failed to lead."""
    successor = books.ledger.successor
    if successor is None:
        return any(submission.role == SUCCESSOR for submission in books.ledger.worker_submissions.values())
    given_up = failures_of(successor, books.ledger) >= LEADER_FAILURES_ALLOWED
    return books.conditions[successor.slurm_job_id].live is not False and not given_up


def _claiming(ledger: Ledger, leader: AllocationRecord, nonce: str, observation: Observation) -> Ledger:
    return attrs.evolve(ledger, election=Claim(leader.slurm_job_id, nonce, observation.login_clock).to_json())


def _why_nothing(observation: Observation) -> HeldBack | None:
    if observation.closing:
        return HeldBack(*CLOSING)
    return None if observation.listing.answered else scheduler_silent(observation)


# -- the answer ------------------------------------------------------------------------------------


def head_result(
    ledger: Ledger, observation: Observation, submitted: tuple[str, ...], held_back: Sequence[HeldBack]
) -> HeadResult:
    """The answer of a call.

    Args:
        ledger: The ledger after it.
        observation: The look that its last decision was made on.
        submitted: Job ids that it submitted.
        held_back: What it held back.
    """
    return HeadResult(
        standing=_standing(ledger, observation, submitted),
        head_job_id=None if ledger.head is None else ledger.head.slurm_job_id,
        claimed=ledger.claimed_leader(),
        submitted=submitted,
        held_back=HeldBackReasons(held_back),
    )


def _standing(ledger: Ledger, observation: Observation, submitted: tuple[str, ...]) -> str:
    if not observation.listing.answered:
        return "unknown"
    if ledger.claimed_leader() is not None:
        return "claimed"
    head = ledger.head
    if head is not None and head.slurm_job_id not in submitted:
        condition = condition_of(head, observation)
        if condition.live is not False:
            return "unknown" if condition.live is None else "queued" if condition.pending else "leads"
    successor = ledger.successor
    succeeded = successor is not None and condition_of(successor, observation).live is not False
    waits = bool(submitted) or succeeded or any(s.role != WORKER for s in ledger.worker_submissions.values())
    return "queued" if waits else "none"
