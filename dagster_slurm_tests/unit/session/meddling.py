"""A session on the simulated site, and a site where something happens around each commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Committed, Plan, Submit
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.errors import HostUnreachable, ReplyIncomplete
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.builders import HEAD_SHAPE, WORKER_SHAPE

KEY = "w"


class Session:
    """A session on a simulated site, with any number of calling processes."""

    def __init__(self) -> None:
        self.scheduler = SimulatedScheduler()
        self.site = SimulatedSite(self.scheduler)
        self.pauses: list[float] = []
        outcome = carry_out(self.site, self.make_head, pause=self.pauses.append)
        assert outcome.submitted == ("1",)
        self.site.start_job("1")

    @staticmethod
    def make_head(observation: Observation) -> Plan:
        return plan_head(observation, "sim", HEAD_SHAPE, WORKER_SHAPE, fresh_tokens())

    def call(self, count: int, site: Any = None, *, pending_timeout: float | None = None, **request: Any) -> Outcome:
        """One ``reconcile_workers``, as the session makes it."""
        intent = WorkerIntent(KEY, count, drain_timeout=30, pending_timeout=pending_timeout)
        asked = WorkerRequest(intents=(intent,), **request)
        tokens: set[str] = set()
        expired: set[str] = set()

        def decide(observation: Observation) -> Plan:
            assert observation.ledger is not None
            mine = attrs.evolve(asked, own_tokens=frozenset(tokens), own_expired=frozenset(expired))
            plan = plan_workers(observation.ledger, observation, mine, fresh_tokens())
            tokens.update(effect.token for effect in plan.effects if isinstance(effect, Submit))
            expired.update(plan.expired)
            return plan

        return carry_out(site or self.site, decide, pause=self.pauses.append)

    def workers(self) -> list[str]:
        """Jobs that work or will, the head apart."""
        return [job.slurm_job_id for job in self.site.working() if job.slurm_job_id != "1"]

    def recorded(self) -> list[str]:
        ledger = self.site.read()
        assert ledger is not None
        return [record.slurm_job_id for record in ledger.workers]


@attrs.define
class Meddled:
    """A site where something happens around each commit.

    Attributes:
        site: The site.
        around: For each commit in turn: takes the commit and its request, gives the answer.
        observations: Looks taken so far.
    """

    site: SimulatedSite
    around: list[Callable[[Callable[[CommitRequest], Any], CommitRequest], Any]]
    observations: int = 0

    def observe(self) -> Observation:
        self.observations += 1
        return self.site.observe()

    def commit(self, request: CommitRequest) -> Committed | CommitRefused:
        if not self.around:
            return self.site.commit(request)
        answer: Committed | CommitRefused = self.around.pop(0)(self.site.commit, request)
        return answer


def lost_when_done(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
    commit(request)
    raise ReplyIncomplete("the reply was cut")


def lost_before(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
    raise HostUnreachable("no route")
