"""A decision in words: what would be done to each allocation, and why. Pure; nothing here decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs

from dagster_slurm.allocations.conditions import Condition, condition_of
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Cancel, Drain, HeldBackReasons, Plan, Revoke, Submit
from dagster_slurm.allocations.request import WorkerRequest

Action: TypeAlias = Literal["submit", "release", "expire", "keep", "record", "cancel", "drain", "drop", "wait"]


@attrs.frozen(kw_only=True)
class PlannedAction:
    """What would be done to one allocation.

    Attributes:
        action: submit (a new one), release (deadline, then cancel or drain), expire (cancel what stayed pending for
            too long), keep, record (a job found for an earlier submission), cancel or drain (once more, for an earlier
            release), drop (an earlier submission that left no job), wait (for the outcome of an earlier submission).
        slurm_job_id: Its job; None for one that has no job id yet.
        intent: Key of the intent that counts it; None for none.
        why: The reason in a sentence.
    """

    action: Action
    slurm_job_id: str | None
    intent: str | None
    why: str

    def __str__(self) -> str:
        what = "a new allocation" if self.slurm_job_id is None else f"job {self.slurm_job_id}"
        if self.slurm_job_id is None and self.action in ("drop", "wait"):
            what = "a submission without a known job"
        verb = "wait for" if self.action == "wait" else self.action
        return f"{verb} {what}{'' if self.intent is None else f' of {self.intent!r}'}: {self.why}"


@attrs.frozen(kw_only=True)
class WorkerPlan:
    """What ``reconcile_workers`` would do at this moment.

    Attributes:
        actions: One for each allocation of the intents, and for each that earlier calls left something to do about.
        held_back: What is asked for and would not be done, with the reason; empty (false) when there is nothing.
        live: Job ids that the intents would count afterwards, new submissions not included.
    """

    actions: tuple[PlannedAction, ...]
    held_back: HeldBackReasons
    live: tuple[str, ...]

    def of(self, action: Action) -> tuple[PlannedAction, ...]:
        """The actions of that kind."""
        return tuple(planned for planned in self.actions if planned.action == action)

    def __str__(self) -> str:
        lines = [str(planned) for planned in self.actions]
        lines += [f"held back ({reason.code}): {reason.sentence}" for reason in self.held_back]
        return "\n".join(lines) or "Nothing to do."


def explain(plan: Plan, observation: Observation, request: WorkerRequest) -> WorkerPlan:
    """Put a decision of ``plan_workers`` into words.

    Args:
        plan: The decision.
        observation: What it was made on.
        request: What was asked for.
    """
    words = _Words(plan, observation, request)
    actions = (*words.releases(), *words.upkeep(), *words.submissions(), *words.rest())
    return WorkerPlan(actions=actions, held_back=HeldBackReasons(plan.held_back), live=plan.live)


class _Words:
    """The sentences about one decision."""

    def __init__(self, plan: Plan, observation: Observation, request: WorkerRequest) -> None:
        self._plan = plan
        self._observation = observation
        self._request = request
        self._intents = {intent.key: intent for intent in request.intents}
        self._records = {record.slurm_job_id: record for record in plan.ledger.records()}

    def releases(self) -> Iterator[PlannedAction]:
        """What the decision releases."""
        for job_id in self._plan.expired:
            record = self._records[job_id]
            limit = self._intents[record.intent or ""].pending_timeout or 0
            yield self._about(record, "expire", f"it has been pending for more than {limit:g} s")
        for job_id in self._plan.released:
            record = self._records[job_id]
            if job_id in self._request.release:
                yield self._about(record, "release", "it is named in release")
            else:
                intent = self._intents[record.intent or ""]
                yield self._about(record, "release", f"{self._wish(intent)}, and it goes first: {self._state(record)}")

    def upkeep(self) -> Iterator[PlannedAction]:
        """What earlier calls left to do."""
        now = {*self._plan.released, *self._plan.expired}
        for effect in self._plan.effects:
            if isinstance(effect, Cancel):
                for job_id in effect.slurm_job_ids:
                    if job_id not in now:
                        yield self._cancelled(job_id, effect)
            elif isinstance(effect, Drain) and effect.slurm_job_id not in now:
                record = self._records[effect.slurm_job_id]
                why = f"its drain did not begin; {effect.remaining_seconds} s are left until its deadline"
                yield self._about(record, "drain", why)
            elif isinstance(effect, Revoke):
                yield self._dropped(effect.token)

    def submissions(self) -> Iterator[PlannedAction]:
        """What the decision submits."""
        for effect in self._plan.effects:
            if isinstance(effect, Submit):
                why = self._wish(self._intents[effect.intent or ""])
                yield PlannedAction(action="submit", slurm_job_id=None, intent=effect.intent, why=why)

    def rest(self) -> Iterator[PlannedAction]:
        """What is recorded, waited for or left as it is."""
        for job_id in self._plan.adopted:
            why = "it was found for a submission whose answer was not recorded"
            yield self._about(self._records[job_id], "record", why)
        dropped = {effect.token for effect in self._plan.effects if isinstance(effect, Revoke)}
        for token in self._plan.unresolved:
            if token in dropped:
                continue
            key = self._plan.ledger.worker_submissions[token].intent
            why = "its outcome is not known yet, so it counts as live"
            yield PlannedAction(action="wait", slurm_job_id=None, intent=key, why=why)
        for job_id in self._plan.live:
            if job_id not in self._plan.adopted:
                record = self._records[job_id]
                leads = "; it leads the session" if self._plan.ledger.leads(job_id) else ""
                yield self._about(record, "keep", f"it counts: {self._state(record)}{leads}")

    # -- parts -------------------------------------------------------------------------------------

    def _about(self, record: AllocationRecord, action: Action, why: str) -> PlannedAction:
        return PlannedAction(action=action, slurm_job_id=record.slurm_job_id, intent=record.intent, why=why)

    def _cancelled(self, job_id: str, effect: Cancel) -> PlannedAction:
        record = self._records.get(job_id)
        if record is None:
            why = "its submission was dropped before it came"
            return PlannedAction(action="cancel", slurm_job_id=job_id, intent=None, why=why)
        if effect.only_pending:
            return self._about(record, "cancel", "it was released and is still pending")
        return self._about(record, "cancel", "its deadline has passed")

    def _dropped(self, token: str) -> PlannedAction:
        submission = self._plan.ledger.worker_submissions.get(token)
        key = None if submission is None else submission.intent
        why = "no job of it was seen; one that comes late ends at once"
        return PlannedAction(action="drop", slurm_job_id=None, intent=key, why=why)

    def _wish(self, intent: WorkerIntent) -> str:
        return f"{intent.key!r} asks for {intent.count}, {self._counted_before(intent.key)} counted"

    def _counted_before(self, key: str) -> int:
        """Counted when the decision began: what it keeps, releases and waits for."""
        gone = {*self._plan.live, *self._plan.released, *self._plan.expired}
        waiting = [self._plan.ledger.worker_submissions[token] for token in self._plan.unresolved]
        return sum(1 for job_id in gone if self._records[job_id].intent == key) + sum(s.intent == key for s in waiting)

    def _state(self, record: AllocationRecord) -> str:
        condition = condition_of(record, self._observation)
        return f"{condition.state or 'state not known'}{_time_left(condition)}"


def _time_left(condition: Condition) -> str:
    left = None if condition.job is None else condition.job.time_left_seconds
    return "" if left is None else f", {left} s left"
