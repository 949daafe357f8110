"""How many allocations should an intent submit or release? The decision of ``reconcile_workers``, pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs

from dagster_slurm.allocations.bookkeeping import Books, bring_up_to_date, drain_of
from dagster_slurm.allocations.conditions import Condition
from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import WORKER, AllocationRecord, Ledger, OpenSubmission
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Cancel, Effect, HeldBack, Plan, Submit
from dagster_slurm.errors import ConfigurationError

#: Seconds between the end of a drain window and the cancel, so that an allocation can end by itself.
DRAIN_GRACE_SECONDS = 60

DEFAULT_SUBMISSIONS_PER_CALL = 50
DEFAULT_LIVE_PER_SESSION = 200


@attrs.frozen(kw_only=True)
class Seen:
    """What a policy's snapshot contained, as far as a decision has to check it again.

    Attributes:
        observed_at: Login node's clock of the snapshot.
        head_job_id: The head in it; None when the session had no job id for it yet.
        slurm_job_ids: Every allocation in it.
    """

    observed_at: int
    head_job_id: str | None
    slurm_job_ids: frozenset[str]


@attrs.frozen(kw_only=True)
class WorkerRequest:
    """What one call of ``reconcile_workers`` asks for.

    Attributes:
        intents: One or several, with different keys.
        seen: The snapshot that the policy decided on; None skips the checks of age and head.
        max_observation_age: Seconds after which ``seen`` is too old to submit on.
        max_submissions: Most submissions of this call; None means the session's limit only.
        release: Job ids to release, whatever the order of scale-in.
        submissions_per_call: Session's limit on submissions in one call.
        live_per_session: Session's limit on live allocations.
    """

    intents: tuple[WorkerIntent, ...]
    seen: Seen | None = None
    max_observation_age: float = 300
    max_submissions: int | None = None
    release: frozenset[str] = frozenset()
    submissions_per_call: int = DEFAULT_SUBMISSIONS_PER_CALL
    live_per_session: int = DEFAULT_LIVE_PER_SESSION

    def __attrs_post_init__(self) -> None:
        keys = [intent.key for intent in self.intents]
        doubled = sorted({key for key in keys if keys.count(key) > 1})
        if doubled:
            raise ConfigurationError(f"two intents have the key {doubled[0]!r}", field="WorkerIntent.key")
        if self.max_submissions is not None and self.max_submissions < 0:
            raise ConfigurationError(
                f"max_submissions must be at least 0, not {self.max_submissions}", field="max_submissions"
            )
        if not self.max_observation_age > 0:
            raise ConfigurationError(
                f"max_observation_age must be above 0 seconds, not {self.max_observation_age}",
                field="max_observation_age",
            )


def base_shape(ledger: Ledger) -> EffectiveShape | None:
    """What worker configs inherit from: the session's worker shape, else the head's."""
    digest = ledger.worker_template or (None if ledger.head is None else ledger.head.shape)
    return None if digest is None else ledger.shapes.get(digest)


def effective_shape(ledger: Ledger, config: SlurmWorkerAllocationConfig | None) -> EffectiveShape:
    """The shape that a submission of ``config`` would have in this session."""
    return inherit(config or SlurmWorkerAllocationConfig(), base_shape(ledger))


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
    books = bring_up_to_date(ledger, observation)
    decision = _Decision(books=books, observation=observation, request=request)
    for intent in request.intents:
        decision = _release_named(decision, intent)
        decision = _expire(decision, intent)
        decision = _scale_in(decision, intent)
    barred = _why_no_submission(decision)
    for intent in request.intents:
        decision = _scale_out(decision, intent, barred, tokens)
    return _finish(decision)


@attrs.frozen(kw_only=True)
class _Decision:
    """The decision so far; every step returns the next one."""

    books: Books
    observation: Observation
    request: WorkerRequest
    effects: tuple[Effect, ...] = ()
    submits: tuple[Submit, ...] = ()
    released: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    held_back: tuple[HeldBack, ...] = ()

    @property
    def ledger(self) -> Ledger:
        return self.books.ledger

    @property
    def now(self) -> int:
        return self.observation.login_clock

    def condition(self, record: AllocationRecord) -> Condition:
        return self.books.conditions[record.slurm_job_id]

    def counted(self, key: str) -> list[AllocationRecord]:
        """Allocations of an intent that are live, or not known to have ended, and not released."""
        return [
            record
            for record in self.ledger.records()
            if record.intent == key and record.drain_deadline is None and self.condition(record).live is not False
        ]

    def open_submissions(self, key: str) -> list[OpenSubmission]:
        """Open submissions of an intent that were there before this call."""
        new = {submit.token for submit in self.submits}
        return [s for s in self.ledger.worker_submissions.values() if s.intent == key and s.token not in new]

    def holding(self, code: str, sentence: str) -> _Decision:
        return attrs.evolve(self, held_back=(*self.held_back, HeldBack(code, sentence)))


# -- releasing ---------------------------------------------------------------------------------------


def _drain_deadline(decision: _Decision, record: AllocationRecord, intent: WorkerIntent) -> int:
    shape = decision.ledger.shapes.get(record.shape)
    window = intent.drain_timeout
    if window is None:
        window = 120 if shape is None else shape.drain_window_seconds
    return decision.now + math.ceil(window) + DRAIN_GRACE_SECONDS


def _release(decision: _Decision, records: Sequence[AllocationRecord], intent: WorkerIntent) -> _Decision:
    """Give each its deadline in the ledger; the cancel or drain is an effect after that."""
    if not records:
        return decision
    ledger, effects = decision.ledger, list(decision.effects)
    pending = tuple(r.slurm_job_id for r in records if decision.condition(r).pending)
    if pending:
        effects.append(Cancel(pending, only_pending=True))
    for record in records:
        deadline = _drain_deadline(decision, record, intent)
        ledger = ledger.with_record(record.slurm_job_id, drain_deadline=deadline)
        if record.slurm_job_id in pending:
            continue
        if record.token is None:
            effects.append(Cancel((record.slurm_job_id,), only_pending=False))
        else:
            effects.append(drain_of(record, deadline, decision.now))
    return attrs.evolve(decision, books=attrs.evolve(decision.books, ledger=ledger), effects=tuple(effects))


def _release_named(decision: _Decision, intent: WorkerIntent) -> _Decision:
    named = [
        record
        for record in decision.counted(intent.key)
        if record.slurm_job_id in decision.request.release
        and decision.condition(record).live is True
        and not decision.ledger.leads(record.slurm_job_id)
    ]
    decision = _release(decision, named, intent)
    return attrs.evolve(decision, released=(*decision.released, *(r.slurm_job_id for r in named)))


def _expire(decision: _Decision, intent: WorkerIntent) -> _Decision:
    if intent.pending_timeout is None:
        return decision
    late = [r for r in decision.counted(intent.key) if _expired(decision, r, intent.pending_timeout)]
    decision = _release(decision, late, intent)
    return attrs.evolve(decision, expired=(*decision.expired, *(r.slurm_job_id for r in late)))


def _expired(decision: _Decision, record: AllocationRecord, pending_timeout: float) -> bool:
    condition = decision.condition(record)
    if not condition.pending or record.submitted_at is None or decision.ledger.leads(record.slurm_job_id):
        return False
    # A requeue starts anew: the scheduler's submit time moves then.
    scheduler_time = None if condition.job is None else condition.job.submitted_at
    since = max(record.submitted_at, scheduler_time or 0)
    return decision.now - since >= pending_timeout


def _scale_in(decision: _Decision, intent: WorkerIntent) -> _Decision:
    surplus = len(decision.counted(intent.key)) - intent.count
    if surplus <= 0 or not decision.observation.listing.answered:
        return decision
    seen = decision.request.seen
    candidates = [
        record
        for record in decision.counted(intent.key)
        if decision.condition(record).live is True
        and not decision.ledger.leads(record.slurm_job_id)
        and (seen is None or record.slurm_job_id in seen.slurm_job_ids)
    ]
    candidates.sort(key=lambda record: scale_in_rank(record, decision.condition(record)))
    chosen = candidates[:surplus]
    decision = _release(decision, chosen, intent)
    return attrs.evolve(decision, released=(*decision.released, *(r.slurm_job_id for r in chosen)))


def scale_in_rank(record: AllocationRecord, condition: Condition) -> tuple[float, float, float]:
    """Sort key of scale-in: pending first (latest submitted first), then least time left, unknown last, newest id first."""
    number = float(record.slurm_job_id) if record.slurm_job_id.isdigit() else 0.0
    job = condition.job
    if condition.pending:
        submitted = record.submitted_at or (None if job is None else job.submitted_at) or 0
        return (0.0, -float(submitted), -number)
    left = None if job is None else job.time_left_seconds
    return (1.0, math.inf if left is None else float(left), -number)


# -- submitting --------------------------------------------------------------------------------------


def _why_no_submission(decision: _Decision) -> HeldBack | None:
    """The reason that bars every submission of this call, or None."""
    observation, seen, ledger = decision.observation, decision.request.seen, decision.ledger
    if observation.closing:
        return HeldBack("closing", "The session is ending: it starts no new work.")
    if not observation.listing.answered:
        said = f" It said: {observation.listing.error}" if observation.listing.error else ""
        return HeldBack("scheduler_silent", f"The scheduler did not answer, so nothing is submitted.{said}")
    if seen is not None and observation.login_clock - seen.observed_at > decision.request.max_observation_age:
        age = observation.login_clock - seen.observed_at
        limit = decision.request.max_observation_age
        return HeldBack("observation_stale", f"The observation is {age} s old, more than {limit:g} s: observe again.")
    head_id = None if ledger.head is None else ledger.head.slurm_job_id
    if seen is not None and seen.head_job_id is not None and seen.head_job_id != head_id:
        return HeldBack(
            "head_changed", f"The head is now job {head_id}, it was {seen.head_job_id} when observed: observe again."
        )
    if ledger.successor is None and _head_is_gone(decision):
        return HeldBack("no_head", "The session has no head: it ended and no successor is published.")
    return None


def _head_is_gone(decision: _Decision) -> bool:
    head = decision.ledger.head
    if head is None:
        return not any(s.role != WORKER for s in decision.ledger.worker_submissions.values())
    return decision.condition(head).live is False


def _scale_out(decision: _Decision, intent: WorkerIntent, barred: HeldBack | None, tokens: Iterator[str]) -> _Decision:
    unresolved = decision.open_submissions(intent.key)
    # What expired in this call keeps its place: the policy may want another shape next time.
    expired = sum(1 for job_id in decision.expired if _intent_of(decision, job_id) == intent.key)
    missing = intent.count - len(decision.counted(intent.key)) - len(unresolved) - expired
    if unresolved:
        decision = decision.holding(
            "unresolved",
            f"{len(unresolved)} submission(s) of {intent.key!r} have no known outcome yet; they count as live.",
        )
    if missing <= 0:
        return decision
    if barred is not None:
        return decision if barred in decision.held_back else decision.holding(barred.code, barred.sentence)
    allowed, decision = _within_limits(decision, intent, missing)
    if allowed <= 0:
        return decision
    shape = effective_shape(decision.ledger, intent.config)
    return submitting(decision, [next(tokens) for _ in range(allowed)], intent.key, shape)


def _intent_of(decision: _Decision, job_id: str) -> str | None:
    record = decision.ledger.record(job_id)
    return None if record is None else record.intent


def _within_limits(decision: _Decision, intent: WorkerIntent, missing: int) -> tuple[int, _Decision]:
    request, used = decision.request, len(decision.submits)
    live = sum(1 for r in decision.ledger.records() if decision.condition(r).live is not False)
    live += len(decision.ledger.worker_submissions)
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


def submitting(decision: _Decision, tokens: Sequence[str], key: str | None, shape: EffectiveShape) -> _Decision:
    """Add submissions: each token stands in the ledger before its effect."""
    ledger, submits = decision.ledger, list(decision.submits)
    for token in tokens:
        submission = OpenSubmission(
            token=token,
            role=WORKER,
            intent=key,
            shape=shape.digest,
            prepared_at=decision.now,
            dated=key is not None,
        )
        ledger = ledger.with_submission(submission, shape)
        submits.append(Submit(token, WORKER, key, shape.digest))
    books = attrs.evolve(decision.books, ledger=ledger)
    return attrs.evolve(decision, books=books, submits=tuple(submits))


def _finish(decision: _Decision) -> Plan:
    keys = [intent.key for intent in decision.request.intents]
    refused = tuple(HeldBack("refused", f"The scheduler refused a submission: {t}") for t in decision.books.refused)
    new = {submit.token for submit in decision.submits}
    return Plan(
        ledger=decision.ledger,
        effects=decision.books.all_effects((*decision.effects, *decision.submits)),
        held_back=(*refused, *decision.held_back),
        released=decision.released,
        expired=decision.expired,
        adopted=decision.books.adopted,
        unresolved=tuple(token for token in decision.ledger.worker_submissions if token not in new),
        live=tuple(record.slurm_job_id for key in keys for record in decision.counted(key)),
    )
