"""Successions with a fault at every step, and a head that dies at every step of a reconcile: exactly one head follows.

The site is the simulated one; its agents are played here: what the ledger makes a leader, claimed or published, brings
up Ray's head and reports it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import attrs
import pytest

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.observation import Observation, Report
from dagster_slurm.allocations.plan import Plan
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.succession import plan_ensure_head, plan_promotion, plan_successor
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.errors import LockTimeout, RemoteError
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens
from dagster_slurm.testing.scheduler import SimulatedJob, SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.counting import executed

pytestmark = pytest.mark.fault("F21")

HEAD = EffectiveShape(partition="main", time_limit="1-00:00:00", head_only=True)
WORKER = EffectiveShape(partition="main", time_limit="01:00:00")
LONGEST_COMMIT = 25


class SiteWithAgents(SimulatedSite):
    """Agents that lead, or are claimed, report Ray's head as soon as they run."""

    def observe(self) -> Observation:
        seen = super().observe()
        if seen.ledger is None:
            return seen
        reports = {job_id: self._report(job_id) for job_id in self.leading(seen.ledger)}
        return attrs.evolve(seen, cluster={job_id: report for job_id, report in reports.items() if report is not None})

    def leading(self, ledger: Ledger) -> set[str]:
        """Jobs whose agents run a head of Ray."""
        named = {ledger.claimed_leader(), None if ledger.head is None else ledger.head.slurm_job_id}
        return {job_id for job_id in named if job_id is not None and self.scheduler.jobs[job_id].works}

    def _report(self, job_id: str) -> Report | None:
        job = self.scheduler.jobs[job_id]
        node = {"ray_node_id": "r", "state": "ALIVE", "slurm_job_id": job_id, "node": f"n{job_id}"}
        return Report(content={"token": job.token, "nodes": [node]}, age_seconds=1)


class World:
    """A session whose head runs, with three workers: one released, the other two of different length."""

    def __init__(self, *, workers: int = 3) -> None:
        self.scheduler = SimulatedScheduler()
        self.site = SiteWithAgents(self.scheduler)
        self.call(lambda o: plan_head(o, "sim", HEAD, WORKER, fresh_tokens()))
        self.start_all()
        self.reconcile(workers)
        self.start_all()
        self.first_head = self.head().slurm_job_id
        self.released: dict[str, int] = {}
        if workers:
            self.reconcile(workers - 1)
            self.note_releases()
            assert len(self.released) == 1
        self.heads: list[str] = [self.first_head]

    # -- what processes do -------------------------------------------------------------------------

    def call(self, decide: Callable[[Observation], Plan]) -> Outcome | None:
        """One call; one that a fault ends has no answer."""
        with contextlib.suppress(RemoteError, LockTimeout):
            return carry_out(self.site, decide, pause=lambda _: None)
        return None

    def ensure(self) -> None:
        self.call(lambda o: plan_ensure_head(known(o), o, fresh_tokens()))
        self.check()

    def promote(self) -> None:
        self.call(lambda o: plan_promotion(known(o), o, next(fresh_tokens())))
        self.check()

    def submit_successor(self) -> None:
        own: list[str] = []

        def decide(observation: Observation) -> Plan:
            own.append(next(fresh_tokens()))
            return plan_successor(known(observation), observation, HEAD, own, 200)

        self.call(decide)
        self.check()

    def reconcile(self, count: int) -> None:
        request = WorkerRequest(intents=(WorkerIntent("w", count, drain_timeout=600),))
        self.call(lambda o: plan_workers(known(o), o, request, fresh_tokens()))

    # -- what the world does -----------------------------------------------------------------------

    def start_all(self) -> None:
        for job in list(self.scheduler.jobs.values()):
            if job.state == "PENDING":
                self.site.start_job(job.slurm_job_id)

    def kill_head(self) -> None:
        self.scheduler.end(self.head().slurm_job_id, "NODE_FAIL")

    def settle(self, step: Callable[[], None]) -> None:
        """The faults are over, suspended commits go on, time passes: a few more steps must do."""
        self.site.fault = None
        self.site.wake()
        self.check()
        for _ in range(6):
            self.scheduler.advance(130 if self.ledger().worker_submissions else 5)
            self.start_all()
            step()

    # -- what must hold ----------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        found = self.site.read()
        assert found is not None
        return found

    def head(self):  # type: ignore[no-untyped-def]
        head = self.ledger().head
        assert head is not None
        return head

    def job(self, job_id: str) -> SimulatedJob:
        return self.scheduler.jobs[job_id]

    def note_releases(self) -> None:
        for record in self.ledger().records():
            if record.drain_deadline is not None:
                known_deadline = self.released.setdefault(record.slurm_job_id, record.drain_deadline)
                assert record.drain_deadline == known_deadline, "a deadline never moves"

    def check(self) -> None:
        """At any moment: one ledger, no released leader, every live job known, no count of a leader."""
        self.note_releases()
        ledger = self.ledger()
        assert not set(self.released) & {ledger.claimed_leader(), self.head().slurm_job_id}
        if self.head().slurm_job_id != self.heads[-1]:
            assert self.head().slurm_job_id not in self.heads, "nobody leads twice"
            self.heads.append(self.head().slurm_job_id)
        assert all(job.token in ledger.known_tokens for job in self.site.working())
        ids = [record.slurm_job_id for record in ledger.records()]
        assert len(ids) == len(set(ids))

    def one_head_leads(self) -> None:
        ledger = self.ledger()
        assert self.job(self.head().slurm_job_id).state == "RUNNING"
        assert self.site.leading(ledger) == {self.head().slurm_job_id}
        assert ledger.election is None
        assert not ledger.worker_submissions
        former = [r.slurm_job_id for r in ledger.predecessors]
        assert not [job_id for job_id in former if self.job(job_id).live], "predecessors are cancelled"


def known(observation: Observation) -> Ledger:
    assert observation.ledger is not None
    return observation.ledger


faults = pytest.mark.parametrize("kind", ["die", "pause", "lose"])


@faults
@pytest.mark.parametrize("commit", [0, 1], ids=["claiming", "publishing"])
@pytest.mark.parametrize("waited_seconds", [0, 80])
def test_F21_an_election_with_a_fault_at_every_step_makes_one_head(kind: str, commit: int, waited_seconds: int) -> None:
    for step in range(LONGEST_COMMIT):
        world = World()
        world.kill_head()
        if commit == 1:
            world.ensure()
            assert world.ledger().claimed_leader() is not None
        made = len(world.site.steps)
        world.site.fault = (kind, step)
        world.ensure()
        reached = len(world.site.steps) - made >= step
        world.scheduler.advance(waited_seconds)
        world.ensure()
        world.settle(world.ensure)
        world.one_head_leads()
        assert len(world.heads) == 2, "one election"
        assert len(world.scheduler.jobs) == 4, "no head was submitted while a worker could lead"
        world.reconcile(2)
        assert world.head().intent == "w"
        assert len([j for j in world.site.working() if j.slurm_job_id not in world.released]) == 2
        executed("F21", simulated=1)
        if not reached:
            break


@faults
@pytest.mark.parametrize("waited_seconds", [0, 80])
def test_F21_a_promotion_with_a_fault_at_every_step_makes_one_head(kind: str, waited_seconds: int) -> None:
    for commit, step in itertools.product((0, 1), range(LONGEST_COMMIT)):
        world = World()
        world.submit_successor()
        world.start_all()
        successor = world.ledger().successor
        assert successor is not None
        if commit == 1:
            world.promote()
        made = len(world.site.steps)
        world.site.fault = (kind, step)
        world.promote()
        reached = len(world.site.steps) - made >= step
        world.scheduler.advance(waited_seconds)
        world.promote()
        world.settle(world.promote)
        world.ensure()
        world.one_head_leads()
        assert world.heads == [world.first_head, successor.slurm_job_id]
        assert not world.job(world.first_head).live
        if not reached and commit == 1:
            break


@faults
@pytest.mark.parametrize("answer", ["ok", "lost", "late", "nothing"])
def test_F21_a_new_head_job_with_a_fault_at_every_step_is_one(kind: str, answer: str) -> None:
    for step in range(LONGEST_COMMIT):
        world = World(workers=0)
        world.kill_head()
        made = len(world.site.steps)
        world.site.fault, world.scheduler.submission_answers = (kind, step), [answer]
        world.ensure()
        reached = len(world.site.steps) - made >= step
        world.site.fault, world.scheduler.submission_answers = None, []
        world.ensure()
        world.scheduler.deliver_late()
        world.settle(world.ensure)
        world.one_head_leads()
        assert len([job for job in world.scheduler.jobs.values() if job.live]) == 1
        executed("F21", simulated=1)
        if not reached:
            break


@faults
def test_a_successor_with_a_fault_at_every_step_is_one(kind: str) -> None:
    for step in range(LONGEST_COMMIT):
        world = World()
        made = len(world.site.steps)
        world.site.fault = (kind, step)
        world.submit_successor()
        reached = len(world.site.steps) - made >= step
        world.submit_successor()
        world.settle(world.submit_successor)
        live = [job for job in world.site.working() if job.slurm_job_id not in world.released]
        assert len(live) == 4, "head, two workers, one successor"
        assert world.ledger().successor is not None
        executed("F21", simulated=1)
        if not reached:
            break


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("promoted", [False, True], ids=["election", "promotion"])
def test_F21_a_head_that_goes_at_every_step_of_a_reconcile_is_followed_by_one(count: int, promoted: bool) -> None:
    for step in range(LONGEST_COMMIT):
        world = World()
        if promoted:
            world.submit_successor()
            world.start_all()
        made = len(world.site.steps)
        world.site.fault = ("pause", step)
        world.reconcile(count)
        reached = len(world.site.steps) - made >= step
        if not promoted:
            world.kill_head()
        act = world.promote if promoted else world.ensure
        act()
        # The suspended reconcile wakes up in the middle of the succession, or its lock is taken over.
        world.site.wake()
        world.check()
        world.scheduler.advance(80)
        act()
        world.settle(act)
        world.ensure()
        world.settle(world.ensure)
        world.one_head_leads()
        for _ in range(3):
            world.reconcile(count)
            world.start_all()
            world.check()
        counted = [r for r in world.ledger().records() if r.intent == "w" and r.drain_deadline is None]
        live = [r.slurm_job_id for r in counted if world.job(r.slurm_job_id).live]
        # An elected worker is never released by a count.
        leads = world.head().slurm_job_id
        assert len(live) == max(count, 1 if leads in live else 0)
        executed("F21", simulated=1)
        if not reached:
            break


@faults
def test_two_processes_at_once_make_one_head(kind: str) -> None:
    """Both look at the same ledger; each commits at each step of the other."""
    for step in range(LONGEST_COMMIT):
        world = World()
        world.kill_head()
        made = len(world.site.steps)
        world.site.fault = ("pause", step)
        world.ensure()
        reached = len(world.site.steps) - made >= step
        world.ensure()
        world.site.fault = (kind, step)
        world.ensure()
        world.site.wake()
        world.check()
        world.scheduler.advance(80)
        world.settle(world.ensure)
        world.one_head_leads()
        assert len(world.heads) == 2
        executed("F21", simulated=1)
        if not reached:
            break
