"""Worker allocations of a session: hold an intent, add one, remove one, move one to another intent."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.explanation import WorkerPlan, explain
from dagster_slurm.allocations.intent import WorkerIntent, check_intent_key, check_seconds
from dagster_slurm.allocations.lifecycle import plan_addition
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import HeldBackReasons, Plan, Submit
from dagster_slurm.allocations.removal import RemovalResult, plan_removal
from dagster_slurm.allocations.request import Seen, WorkerRequest
from dagster_slurm.allocations.result import ReconcileResult
from dagster_slurm.allocations.roles import AssignmentResult, plan_assignment
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.allocations.workers import effective_shape, plan_workers
from dagster_slurm.errors import ConfigurationError, SubmissionRefused
from dagster_slurm.session.base import SessionBase
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens


class WorkerScaling(SessionBase):
    """What a session does with its worker allocations."""

    def reconcile_workers(
        self,
        intent: WorkerIntent | Sequence[WorkerIntent],
        *,
        observed: SessionSnapshot | None = None,
        max_observation_age: float = 300,
        max_submissions: int | None = None,
        release: Iterable[str] = (),
    ) -> ReconcileResult:
        """Submit or release allocations until each intent's count holds. Safe across processes and lost connections.

        Args:
            intent: One intent, or several: one query and one commit serve all.
            observed: The snapshot that the counts were decided on; None skips the checks of its age and head.
            max_observation_age: Seconds after which ``observed`` is too old to submit on.
            max_submissions: Most submissions of this call; None means the session's limits only.
            release: Job ids to release whatever the order of scale-in; ignored unless live and of the intents.

        Raises:
            RemoteError: the login node could not be asked.
            LockTimeout: the session lock stayed taken; nothing was submitted.
            ConfigurationError: a request that makes no sense.
        """
        request = self._request(intent, observed, max_observation_age, max_submissions, release)
        tokens: set[str] = set()
        expired: set[str] = set()

        def decide(observation: Observation) -> Plan:
            asked = attrs.evolve(request, own_tokens=frozenset(tokens), own_expired=frozenset(expired))
            plan = plan_workers(self._known(observation), observation, asked, fresh_tokens())
            tokens.update(effect.token for effect in plan.effects if isinstance(effect, Submit))
            expired.update(plan.expired)
            return plan

        outcome = carry_out(self._site, decide)
        self._ledger = outcome.ledger
        return ReconcileResult(
            submitted=outcome.submitted,
            released=outcome.released,
            expired=outcome.expired,
            recovered=outcome.recovered,
            live=tuple(dict.fromkeys((*outcome.plan.live, *_submitted_for(outcome, request)))),
            held_back=HeldBackReasons(outcome.held_back),
        )

    def plan_workers(
        self,
        intent: WorkerIntent | Sequence[WorkerIntent],
        *,
        observed: SessionSnapshot | None = None,
        max_observation_age: float = 300,
        max_submissions: int | None = None,
        release: Iterable[str] = (),
    ) -> WorkerPlan:
        """What ``reconcile_workers`` would do now with the same arguments, and why; nothing is done.

        It asks the scheduler anew, so the real call may decide otherwise.

        Raises:
            RemoteError: the login node could not be asked.
            ConfigurationError: a request that makes no sense.
        """
        request = self._request(intent, observed, max_observation_age, max_submissions, release)
        observation = self._site.observe()
        plan = plan_workers(self._known(observation), observation, request, fresh_tokens())
        return explain(plan, observation, request)

    def _request(
        self,
        intent: WorkerIntent | Sequence[WorkerIntent],
        observed: SessionSnapshot | None,
        max_observation_age: float,
        max_submissions: int | None,
        release: Iterable[str],
    ) -> WorkerRequest:
        if isinstance(release, str):
            raise ConfigurationError(f"release takes several job ids, such as [{release!r}]", field="release")
        return WorkerRequest(
            intents=(intent,) if isinstance(intent, WorkerIntent) else tuple(intent),
            seen=None if observed is None else _seen(observed),
            max_observation_age=max_observation_age,
            max_submissions=max_submissions,
            release=frozenset(str(job_id) for job_id in release),
            submissions_per_call=self._submissions_per_call,
            live_per_session=self._live_per_session,
        )

    def assign_worker_intent(self, slurm_job_id: str, key: str | None) -> AssignmentResult:
        """Move a live worker allocation into an intent, or out of every intent with None.

        One that leaves every intent is never released by a count. One that joins an intent has no ``submitted_at``, so
        ``pending_timeout`` never cancels it. One that is being released keeps its intent until it ends.

        Raises:
            ConfigurationError: a key that cannot name an intent.
            RemoteError: the login node could not be asked.
        """
        if key is not None:
            check_intent_key(key)
        outcome = carry_out(self._site, lambda o: plan_assignment(self._known(o), o, slurm_job_id, key))
        self._ledger = outcome.ledger
        record = outcome.ledger.record(slurm_job_id)
        return AssignmentResult(
            slurm_job_id=slurm_job_id,
            intent=None if record is None else record.intent,
            held_back=next(iter(outcome.held_back), None),
        )

    def add_worker_allocation(self, config: SlurmWorkerAllocationConfig | None = None) -> AllocationSnapshot:
        """Submit one worker allocation that belongs to no intent: no count ever releases it.

        Returns:
            The allocation as submitted. Its job id is None when the outcome is not known yet; a later call finds it.

        Raises:
            SubmissionRefused: the scheduler refused it, did not answer, the session is ending, or has as many live
                allocations as its limit allows.
            RemoteError: the login node could not be asked.
        """

        def decide(observation: Observation) -> Plan:
            ledger = self._known(observation)
            tokens.append(secrets.token_hex(16))
            shape = effective_shape(ledger, config)
            return plan_addition(ledger, observation, shape, tokens, self._live_per_session)

        tokens: list[str] = []
        outcome = carry_out(self._site, decide)
        self._ledger = outcome.ledger
        for job_id in outcome.submitted:
            return AllocationSnapshot(slurm_job_id=job_id, role="worker")
        if not outcome.ledger.worker_submissions.keys().isdisjoint(tokens):
            return AllocationSnapshot(slurm_job_id=None, role="worker", message=str(HeldBackReasons(outcome.held_back)))
        raise SubmissionRefused("No worker allocation was added.", cluster_said=str(HeldBackReasons(outcome.held_back)))

    def remove_worker_allocation(self, slurm_job_id: str, *, drain_timeout: float | None = None) -> RemovalResult:
        """Release one worker allocation: cancelled while pending, else drained until its deadline, then cancelled.

        One that an intent counts is replaced by the next ``reconcile_workers`` unless the count is lowered.

        Args:
            slurm_job_id: The allocation.
            drain_timeout: Seconds to finish running work in; None means the drain window of its shape.

        Raises:
            ConfigurationError: a drain_timeout that is no number of seconds.
            RemoteError: the login node could not be asked.
        """
        check_seconds(drain_timeout, "drain_timeout", zero=True)
        outcome = carry_out(self._site, lambda o: plan_removal(self._known(o), o, slurm_job_id, drain_timeout))
        self._ledger = outcome.ledger
        record = outcome.ledger.record(slurm_job_id)
        return RemovalResult(
            slurm_job_id=slurm_job_id,
            drain_deadline=None if record is None else record.drain_deadline,
            held_back=next(iter(outcome.held_back), None),
        )


def _seen(snapshot: SessionSnapshot) -> Seen:
    return Seen(
        observed_at=snapshot.observed_at,
        head_job_id=snapshot.head.slurm_job_id,
        slurm_job_ids=frozenset(a.slurm_job_id for a in snapshot.allocations if a.slurm_job_id is not None),
    )


def _submitted_for(outcome: Outcome, request: WorkerRequest) -> tuple[str, ...]:
    keys = {intent.key for intent in request.intents}
    records = (outcome.ledger.record(job_id) for job_id in outcome.submitted)
    return tuple(record.slurm_job_id for record in records if record is not None and record.intent in keys)
