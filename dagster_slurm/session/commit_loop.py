"""Observe, decide, commit: the loop that every operation on a session is."""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterator

import attrs

from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.lifecycle import plan_outcomes, plan_upkeep
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Committed, HeldBack, Plan, Site, Submit
from dagster_slurm.errors import RemoteError, SessionError

#: How often a call decides again after another commit came first, or after a lost reply.
ATTEMPTS = 8
_LONGEST_PAUSE_SECONDS = 1.0


def fresh_tokens() -> Iterator[str]:
    """Endless 128-bit tokens in hex."""
    while True:
        yield secrets.token_hex(16)


@attrs.frozen(kw_only=True)
class Outcome:
    """What one call did, over all its attempts.

    Attributes:
        observation: The look that the last decision was made on.
        ledger: The ledger afterwards, as far as this call knows.
        plan: The last decision.
        submitted: Job ids of what this call submitted.
        recovered: Job ids of earlier submissions, recorded by this call.
        released: Job ids released by this call.
        expired: Job ids cancelled by this call because they were pending for too long.
        held_back: What was asked for and not done.
    """

    observation: Observation
    ledger: Ledger
    plan: Plan
    submitted: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    held_back: tuple[HeldBack, ...] = ()


def carry_out(
    site: Site,
    decide: Callable[[Observation], Plan],
    *,
    even_if_closing: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Observe, decide and commit until a decision is in place, nothing is to be done, or the attempts are used up.

    Args:
        site: Where the session lives.
        decide: The planner.
        even_if_closing: Only for the end of a session.
        pause: For tests.

    Raises:
        RemoteError: the login node could not be asked.
    """
    return _Call(site, decide, even_if_closing, pause).run()


class _Call:
    """One call's memory: what it asked for itself, so that it is told apart from what others left behind."""

    def __init__(
        self, site: Site, decide: Callable[[Observation], Plan], even_if_closing: bool, pause: Callable[[float], None]
    ) -> None:
        self._site = site
        self._decide = decide
        self._even_if_closing = even_if_closing
        self._pause = pause
        self._own_tokens: set[str] = set()
        self._recovered: dict[str, None] = {}
        self._released: dict[str, None] = {}
        self._expired: dict[str, None] = {}
        self._unanswered: list[tuple[str, Plan]] = []
        self._refused: tuple[HeldBack, ...] = ()

    def run(self) -> Outcome:
        observation = self._site.observe()
        contended: HeldBack | None = None
        for attempt in range(ATTEMPTS):
            self._claim_unanswered(observation)
            plan = self._decide(observation)
            if not plan.changes(observation.ledger):
                return self._outcome(observation, plan, plan.ledger, plan.held_back)
            request = self._request(plan, observation.ledger_sha256, observation.login_clock)
            self._own_tokens |= {effect.token for effect in plan.effects if isinstance(effect, Submit)}
            try:
                answer = self._site.commit(request)
            except RemoteError:
                # It may have been done, or still be done: the next look tells, and its checksum keeps us from both.
                self._unanswered.append((request.nonce, plan))
                self._pause_before(attempt)
                observation = self._site.observe()
                continue
            if isinstance(answer, CommitRefused):
                observation = answer.observation
                if answer.code == "scheduler_silent":
                    silent = HeldBack("scheduler_silent", f"The scheduler did not answer. It said: {answer.detail}")
                    plan = self._decide(observation)
                    other = (reason for reason in plan.held_back if reason.code != silent.code)
                    return self._outcome(observation, _nothing(plan), None, (silent, *other))
                contended = HeldBack("contended", f"Other calls kept coming first ({answer.detail}); call again.")
                self._pause_before(attempt)
                continue
            outcome = self._record(observation, plan, request, answer)
            if not answer.revoked:
                return outcome
            # What was in doubt is settled now, one way or the other: decide what was not decided because of it.
            self._refused += tuple(reason for reason in outcome.held_back if reason.code == "refused")
            observation = self._site.observe()
        plan = self._decide(observation)
        held_back = (*plan.held_back, contended or HeldBack("contended", "No commit was answered; call again."))
        return self._outcome(observation, _nothing(plan), None, held_back)

    # -- parts -------------------------------------------------------------------------------------

    def _request(self, plan: Plan, expected: str, observed_at: int) -> CommitRequest:
        nonce = secrets.token_hex(16)
        return CommitRequest(
            nonce=nonce,
            expected_sha256=expected,
            observed_at=observed_at,
            ledger=attrs.evolve(plan.ledger, last_commit=nonce).to_bytes(),
            effects=plan.effects,
            even_if_closing=self._even_if_closing,
        )

    def _pause_before(self, attempt: int) -> None:
        # Jitter: calls that collided should not collide again.
        self._pause(random.uniform(0.0, min(_LONGEST_PAUSE_SECONDS, 0.05 * 2**attempt)))

    def _note(self, plan: Plan) -> None:
        self._released.update(dict.fromkeys(plan.released))
        self._expired.update(dict.fromkeys(plan.expired))
        self._recovered.update(dict.fromkeys(plan.adopted))

    def _claim_unanswered(self, observation: Observation) -> None:
        """Whether an unanswered commit was done shows in its nonce, or in the deadlines that it would have written."""
        written = observation.ledger
        if written is None:
            return
        for nonce, plan in self._unanswered:
            if written.last_commit == nonce:
                self._note(plan)
            for job_id in (*plan.released, *plan.expired):
                planned, found = plan.ledger.record(job_id), written.record(job_id)
                if planned is not None and found is not None and planned.drain_deadline == found.drain_deadline:
                    (self._released if job_id in plan.released else self._expired)[job_id] = None

    def _record(self, observation: Observation, plan: Plan, request: CommitRequest, answer: Committed) -> Outcome:
        """A last commit without submissions moves the new job ids into the ledger.

        Nothing depends on it: the ids are in the result files, and any later call finds them.
        """
        self._note(plan)
        ledger = attrs.evolve(plan.ledger, last_commit=request.nonce)
        if not answer.submissions:
            return self._outcome(observation, plan, ledger, plan.held_back)
        noting = plan_outcomes(ledger, answer)
        held_back = (*plan.held_back, *noting.held_back)
        if noting.changes(ledger):
            expected = hashlib.sha256(request.ledger).hexdigest()
            self._commit_noting(noting, expected, observation.login_clock)
        return self._outcome(observation, plan, noting.ledger, held_back)

    def _commit_noting(self, noting: Plan, expected: str, observed_at: int) -> None:
        for attempt in range(ATTEMPTS):
            try:
                answer = self._site.commit(self._request(noting, expected, observed_at))
            except (RemoteError, SessionError):
                return
            if isinstance(answer, Committed) or answer.observation.ledger is None:
                return
            current = answer.observation
            noting = plan_upkeep(answer.observation.ledger, current)
            if not noting.changes(answer.observation.ledger) or answer.code == "scheduler_silent":
                return
            expected, observed_at = current.ledger_sha256, current.login_clock
            self._pause_before(attempt)

    def _outcome(
        self, observation: Observation, plan: Plan, ledger: Ledger | None, held_back: tuple[HeldBack, ...]
    ) -> Outcome:
        known = ledger or observation.ledger or plan.ledger
        # The plan's ledger too: it has found jobs whose ids nobody could record yet.
        found = (r.slurm_job_id for r in (*known.records(), *plan.ledger.records()) if r.token in self._own_tokens)
        submitted = tuple(dict.fromkeys(found))
        return Outcome(
            observation=observation,
            ledger=known,
            plan=plan,
            submitted=submitted,
            recovered=tuple(job_id for job_id in self._recovered if job_id not in submitted),
            released=tuple(self._released),
            expired=tuple(self._expired),
            held_back=tuple(dict.fromkeys((*self._refused, *held_back))),
        )


def _nothing(plan: Plan) -> Plan:
    """The same decision without what was not done; what it would have released is still counted."""
    live = (*plan.live, *plan.released, *plan.expired)
    return attrs.evolve(plan, effects=(), released=(), expired=(), live=live)
