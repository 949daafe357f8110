"""Begin a session, keep it with a head, add one worker, note outcomes, end it: the smaller planners, pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from dagster_slurm.allocations.bookkeeping import bring_up_to_date, plan_with, submitting
from dagster_slurm.allocations.conditions import Condition
from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.ledger import WORKER, Ledger
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.allocations.plan import (
    CLOSING,
    Close,
    Committed,
    Effect,
    Forget,
    HeldBack,
    NotTried,
    Plan,
    Revoke,
    refusals,
    scheduler_silent,
)
from dagster_slurm.allocations.result import EndResult
from dagster_slurm.allocations.settings import job_name_for
from dagster_slurm.allocations.succession import plan_ensure_head
from dagster_slurm.errors import SessionClosing, SessionRecordsLost
from dagster_slurm.slurm.replies import Listing, Refused, Submitted


def plan_head(
    observation: Observation,
    session_id: str,
    head_shape: EffectiveShape,
    worker_shape: EffectiveShape,
    tokens: Iterator[str],
) -> Plan:
    """Make sure that a session exists and has a head: submit one unless there is one, or one may be on its way.

    Raises:
        SessionClosing: the session is ending.
        SessionRecordsLost: jobs of its name are alive and there are no records of them.
    """
    if observation.closing:
        raise SessionClosing(
            f"The session {session_id} is ending; it starts no new work.",
            remedy="run the job again: a new run gets a new session.",
        )
    ledger = observation.ledger
    if ledger is None:
        alive = [job.slurm_job_id for job in observation.listing.jobs if Condition(state=job.state).live]
        if alive:
            raise SessionRecordsLost(
                f"The records of session {session_id} are gone, but its jobs live: {', '.join(alive)}.",
                remedy=f"look at them (squeue --name={job_name_for(session_id)}); cancel them or restore the records.",
            )
        ledger = Ledger(session_id=session_id, job_name=job_name_for(session_id))
        ledger = attrs.evolve(
            ledger,
            head_template=head_shape.digest,
            worker_template=worker_shape.digest,
            shapes={shape.digest: shape for shape in (head_shape, worker_shape)},
        )
    # Without an answered listing a session is not created either: its jobs might be alive.
    return plan_ensure_head(ledger, observation, tokens)


def plan_addition(
    ledger: Ledger, observation: Observation, shape: EffectiveShape, tokens: Sequence[str], live_per_session: int
) -> Plan:
    """Submit one worker allocation that belongs to no intent.

    Args:
        ledger: The ledger of the observation.
        observation: A look that was just taken.
        shape: Its shape.
        tokens: Tokens of this call's attempts, the newest last: when an earlier one is known to the ledger, taken or
            dropped, nothing is submitted.
        live_per_session: Most live allocations of the session.
    """
    if observation.closing:
        return Plan(ledger=ledger, held_back=(HeldBack(*CLOSING),))
    books = bring_up_to_date(ledger, observation)
    if not books.ledger.known_tokens.isdisjoint(tokens):
        return plan_with(books, books.ledger, ())
    if not observation.listing.answered:
        return plan_with(books, books.ledger, (), (scheduler_silent(observation),))
    full = books.full(live_per_session)
    if full is not None:
        return plan_with(books, books.ledger, (), (full,))
    ledger, submit = submitting(books.ledger, observation, tokens[-1], WORKER, shape)
    return plan_with(books, ledger, (submit,))


def plan_upkeep(ledger: Ledger, observation: Observation) -> Plan:
    """Nothing new: only record what became known, and enforce deadlines. One that is ending is left to its end."""
    if observation.closing:
        return Plan(ledger=ledger)
    books = bring_up_to_date(ledger, observation)
    return plan_with(books, books.ledger, ())


def plan_outcomes(ledger: Ledger, committed: Committed) -> Plan:
    """Move the job ids of a commit's submissions into the ledger.

    Args:
        ledger: The ledger of that commit.
        committed: Its answer.
    """
    closed: list[str] = []
    effects: list[Effect] = []
    held_back: list[HeldBack] = []
    not_tried = 0
    for token, outcome in committed.submissions.items():
        if token not in ledger.worker_submissions:
            continue
        answer = outcome.answer
        if isinstance(answer, Submitted):
            ledger = ledger.with_adopted(token, answer.slurm_job_id, outcome.submitted_at)
            closed.append(token)
        elif isinstance(answer, Refused):
            # Renamed as well: should the refusal have been none, the job finds nothing to claim.
            effects.append(Revoke(token, Fate.SENT))
            held_back += refusals((answer.text,))
            ledger = ledger.without_submission(token)
            closed.append(token)
        elif isinstance(answer, NotTried):
            not_tried += 1
            ledger = ledger.without_submission(token)
            closed.append(token)
        else:
            held_back.append(
                HeldBack(
                    "unresolved",
                    f"Whether a job was submitted is not known; it counts as live until that is clear. {answer.text}",
                )
            )
    if closed:
        effects.append(Forget(tuple(closed)))
    if not_tried and not held_back:
        # No failure stopped them.
        sentence = (
            f"{not_tried} submission(s) were not begun: the commit's time was up, its lock was taken over, "
            "or the session began to end. Call again."
        )
        held_back.append(HeldBack("contended", sentence))
    return Plan(ledger=ledger, effects=tuple(effects), held_back=tuple(held_back))


def plan_end(observation: Observation, session_id: str) -> Plan:
    """Mark the session as ending and cancel every job of its name. Repeated until nothing is left."""
    ledger = observation.ledger or Ledger(session_id=session_id, job_name=job_name_for(session_id))
    books = bring_up_to_date(ledger, observation)
    if observation.closing and is_over(observation):
        return Plan(ledger=ledger)
    # Everything is cancelled by name, so of the upkeep only what settles open submissions is left to do.
    settling = tuple(effect for effect in books.effects if isinstance(effect, Revoke))
    books = attrs.evolve(books, effects=settling)
    return plan_with(books, books.ledger, (Close(),))


def is_over(observation: Observation) -> bool:
    """Whether a listing shows no live job of the session and no submission is open."""
    return observation.listing.answered and not live_jobs(observation.listing) and not open_tokens(observation)


def live_jobs(listing: Listing) -> tuple[str, ...]:
    """Jobs of the session's name that the listing shows and that are not known to have ended."""
    return tuple(job.slurm_job_id for job in listing.jobs if Condition(state=job.state).live is not False)


def end_by_name(listing: Listing) -> EndResult:
    """How far a session has come that was marked as ending and whose records cannot be read.

    A submission that comes late finds the mark and ends at once, so a good listing without a live job is the end.
    """
    live = live_jobs(listing)
    return EndResult(complete=listing.answered and not live, live=live, by_name=True)


def open_tokens(observation: Observation) -> tuple[str, ...]:
    """Submissions whose outcome is not known."""
    ledger = observation.ledger
    return () if ledger is None else tuple(bring_up_to_date(ledger, observation).ledger.worker_submissions)
