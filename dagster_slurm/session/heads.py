"""The head of a session and the next one: submit it, promote it, elect it. Observe, decide, commit."""

from __future__ import annotations

import secrets
import time

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Plan
from dagster_slurm.allocations.succession import (
    HeadResult,
    head_result,
    plan_ensure_head,
    plan_promotion,
    plan_successor,
    successor_shape,
)
from dagster_slurm.session.base import SessionBase
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens

#: Between two steps of a promotion.
_STEP_SECONDS = 1.0


class HeadSuccession(SessionBase):
    """The part of ``AllocationSession`` that keeps it with a head."""

    def ensure_head(self) -> HeadResult:
        """One step towards a head that leads; call it again while the answer's ``standing`` is "claimed".

        Nothing is done while the head is well. When it has ended, lost Ray or is about to end, an allocation is claimed
        as the next head: the running successor, else the running worker with fewest failures and most time left. The
        claimed allocation brings up Ray's head; the next step publishes it and cancels the old head. When a head has
        ended and nothing can take its place, a new head is submitted. A released worker never leads. Any number of
        processes may call this at once: one head comes of it.

        Raises:
            SessionNotFound: the session has no records.
            RemoteError: the login node could not be asked. A silent scheduler is no error: nothing is elected then.
        """
        return self._answer(carry_out(self._site, lambda o: plan_ensure_head(self._known(o), o, fresh_tokens())))

    def submit_successor(self, config: SlurmWorkerAllocationConfig | None = None) -> HeadResult:
        """Queue the next head before the walltime of the current one ends, unless one is queued or runs already.

        Args:
            config: What differs from the head's shape; what it leaves out is inherited, ``head_only`` included.

        Returns:
            ``submitted`` has its job id. It is empty when there was a successor before, or with ``held_back``. The
            successor waits once it runs: ``promote_successor``, or an election, makes it the head.

        Raises:
            ConfigurationError: a shape that cannot be rendered.
            SessionNotFound, RemoteError: as ``ensure_head``.
        """
        tokens: list[str] = []

        def decide(observation: Observation) -> Plan:
            ledger = self._known(observation)
            tokens.append(secrets.token_hex(16))
            return plan_successor(ledger, observation, successor_shape(ledger, config), tokens, self._live_per_session)

        return self._answer(carry_out(self._site, decide))

    def promote_successor(self, *, timeout_seconds: float = 60) -> HeadResult:
        """Make the running successor the head, although the current one is well; that one is cancelled then.

        Ray's head starts on the successor beside the old one. Once it is up, the workers follow it; payloads on the old
        head end with it.

        Args:
            timeout_seconds: How long to wait for Ray's head there; 0 makes one step. An unfinished promotion is gone on
                with by the next call of this or of ``ensure_head``.

        Returns:
            ``standing`` is "claimed" when the time was up. ``held_back`` has the code no_successor, not_running or
            leader_failed when it was not promoted.

        Raises:
            SessionNotFound, RemoteError: as ``ensure_head``.
        """
        until = time.monotonic() + timeout_seconds
        while True:
            result = self._answer(
                carry_out(self._site, lambda o: plan_promotion(self._known(o), o, secrets.token_hex(16)))
            )
            if result.standing != "claimed" or time.monotonic() >= until:
                return result
            time.sleep(_STEP_SECONDS)

    def _answer(self, outcome: Outcome) -> HeadResult:
        self._ledger = outcome.ledger
        return head_result(outcome.ledger, outcome.observation, outcome.submitted, outcome.held_back)
