"""How many allocations should an intent submit or release? The decision of ``reconcile_workers``, pure."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dagster_slurm.allocations.bookkeeping import bring_up_to_date
from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.allocations.decision import Decision
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import HEAD, WORKER, Ledger, OpenSubmission
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CLOSING, HeldBack, Plan, Submit, refusals, scheduler_silent
from dagster_slurm.allocations.releases import expire, release_named, scale_in
from dagster_slurm.allocations.request import DEFAULT_LIVE_PER_SESSION as DEFAULT_LIVE_PER_SESSION
from dagster_slurm.allocations.request import DEFAULT_SUBMISSIONS_PER_CALL as DEFAULT_SUBMISSIONS_PER_CALL
from dagster_slurm.allocations.request import Seen as Seen
from dagster_slurm.allocations.request import WorkerRequest as WorkerRequest


def base_shape(ledger: Ledger) -> EffectiveShape | None:
    """What worker configs inherit from: the session's worker shape, else the head's."""
    digest = ledger.worker_template or (None if ledger.head is None else ledger.head.shape)
    return None if digest is None else ledger.shapes.get(digest)


def effective_shape(ledger: Ledger, config: SlurmWorkerAllocationConfig | None) -> EffectiveShape:
    """The shape that a submission of ``config`` would have in this session.

    Raises:
        ConfigurationError: what it inherits does not go together with what it states.
    """
    return inherit(config, base_shape(ledger))


def plan_workers(ledger: Ledger, observation: Observation, request: WorkerRequest, tokens: Iterator[str]) -> Plan:
    """Decide one call of ``reconcile_workers``.

    Args:
        ledger: The ledger of the observation.
        observation: A look that was just taken.
        request: What is asked for.
        tokens: Fresh submission tokens, as many as needed.

    Returns:
        The plan. Submissions come after releases, so that what a release frees can be used.
    """
    decision = Decision(books=bring_up_to_date(ledger, observation), observation=observation, request=request)
    if observation.closing:
        # Only the end of a session may still commit to it, and that cancels everything by name.
        return attrs.evolve(_finish(decision.holding(*CLOSING)), ledger=ledger, effects=(), adopted=())
    for intent in request.intents:
        decision = release_named(decision, intent)
        decision = expire(decision, intent)
        decision = scale_in(decision, intent)
    if not observation.listing.answered:
        decision = attrs.evolve(decision, held_back=(*decision.held_back, scheduler_silent(observation)))
    barred = _why_no_submission(decision)
    for intent in request.intents:
        decision = _scale_out(decision, intent, barred, tokens)
    return _finish(decision)


def _why_no_submission(decision: Decision) -> HeldBack | None:
    """The reason that bars every submission of this call, or None."""
    observation, seen, ledger = decision.observation, decision.request.seen, decision.ledger
    if not observation.listing.answered:
        return scheduler_silent(observation)
    if seen is not None and observation.login_clock - seen.observed_at > decision.request.max_observation_age:
        age = observation.login_clock - seen.observed_at
        limit = decision.request.max_observation_age
        return HeldBack("observation_stale", f"The observation is {age} s old, more than {limit:g} s: observe again.")
    head_id = None if ledger.head is None else ledger.head.slurm_job_id
    if seen is not None and seen.head_job_id is not None and seen.head_job_id != head_id:
        return HeldBack(
            "head_changed", f"The head is now job {head_id}, it was {seen.head_job_id} when observed: observe again."
        )
    if not _has_head(decision):
        return HeldBack("no_head", "The session has no head: it ended and no successor is published.")
    if decision.request.own_tokens.intersection(ledger.revoked_tokens):
        return HeldBack("refused", "A submission of this call was dropped, so it submits nothing more.")
    return None


def _has_head(decision: Decision) -> bool:
    """Whether a head or successor may be alive, or a head is on its way."""
    leaders = [r for r in (decision.ledger.head, decision.ledger.successor) if r is not None]
    on_its_way = any(s.role == HEAD for s in decision.ledger.worker_submissions.values())
    return on_its_way or any(decision.condition(r).live is not False for r in leaders)


def _scale_out(decision: Decision, intent: WorkerIntent, barred: HeldBack | None, tokens: Iterator[str]) -> Decision:
    unresolved = decision.open_submissions(intent.key)
    if unresolved:
        decision = decision.holding(
            "unresolved",
            f"{len(unresolved)} submission(s) of {intent.key!r} have no known outcome yet; they count as live.",
        )
    missing = intent.count - len(decision.counted(intent.key)) - len(unresolved) - _expired_now(decision, intent.key)
    if missing <= 0:
        return decision
    if barred is not None:
        return decision if barred in decision.held_back else decision.holding(barred.code, barred.sentence)
    allowed, decision = _within_limits(decision, intent, missing)
    if allowed == 0:
        return decision
    shape = effective_shape(decision.ledger, intent.config)
    return _submitting(decision, [next(tokens) for _ in range(allowed)], intent.key, shape)


def _expired_now(decision: Decision, key: str) -> int:
    """What expired in this call keeps its place: the policy may want another shape next time."""
    ids = {*decision.expired, *decision.request.own_expired}
    return sum(
        1
        for record in decision.ledger.records()
        if record.slurm_job_id in ids and record.intent == key and record.drain_deadline is not None
    )


def _within_limits(decision: Decision, intent: WorkerIntent, missing: int) -> tuple[int, Decision]:
    request, used = decision.request, len(decision.submits) + decision.attempted()
    live = decision.books.live_count
    bounds = [
        ("budget", request.max_submissions, used, "max_submissions allows {limit} in this call"),
        ("limit", request.submissions_per_call, used, "a call submits at most {limit}"),
        ("limit", request.live_per_session, live, "a session has at most {limit} live allocations"),
    ]
    allowed = missing
    for code, limit, taken, sentence in bounds:
        if limit is not None and limit - taken < allowed:
            allowed = max(0, limit - taken)
            reason = sentence.format(limit=limit)
            decision = decision.holding(
                code, f"{intent.key!r} asks for {missing} more, {missing - allowed} of them not submitted: {reason}."
            )
    return allowed, decision


def _submitting(decision: Decision, tokens: list[str], key: str, shape: EffectiveShape) -> Decision:
    """Add submissions: each token stands in the ledger before its effect."""
    ledger, digest = decision.ledger, shape.digest
    for token in tokens:
        submission = OpenSubmission(
            token=token, role=WORKER, intent=key, shape=digest, prepared_at=decision.now, dated=True
        )
        ledger = ledger.with_submission(submission, shape)
    submits = tuple(Submit(token, WORKER, key, digest) for token in tokens)
    return attrs.evolve(decision.with_ledger(ledger), submits=(*decision.submits, *submits))


def _finish(decision: Decision) -> Plan:
    keys = [intent.key for intent in decision.request.intents]
    new = {submit.token for submit in decision.submits}
    return Plan(
        ledger=decision.ledger,
        effects=decision.books.all_effects((*decision.effects, *decision.submits)),
        held_back=(*refusals(decision.books.refused), *decision.held_back),
        released=decision.released,
        expired=decision.expired,
        adopted=decision.books.adopted,
        unresolved=tuple(token for token in decision.ledger.worker_submissions if token not in new),
        live=tuple(record.slurm_job_id for key in keys for record in decision.counted(key)),
    )
