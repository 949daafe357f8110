"""Several processes, crashes between any two effects, lost replies, a lying scheduler: the invariants hold throughout.

The site is the simulated one, whose steps are those of the shell scripts; faults/ holds the scripts to the same on a
real Slurm.
"""

from __future__ import annotations

from functools import lru_cache

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import Ledger, read_ledger
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Plan
from dagster_slurm.allocations.snapshot import build_snapshot
from dagster_slurm.allocations.workers import WorkerRequest, plan_workers
from dagster_slurm.errors import LockTimeout, RemoteError
from dagster_slurm.session.commit_loop import carry_out, fresh_tokens
from dagster_slurm.testing.scheduler import SimulatedJob, SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.counting import executed

HEAD = EffectiveShape(partition="main", time_limit="1-00:00:00", head_only=True)
WORKER = EffectiveShape(partition="main", time_limit="01:00:00")

counts = st.integers(0, 5)
answers = st.lists(st.sampled_from(["ok", "ok", "lost", "nothing", "late", "refused"]), max_size=6)
faults = st.one_of(st.none(), st.tuples(st.sampled_from(["die", "power", "pause", "lose"]), st.integers(0, 24)))


def no_pause(seconds: float) -> None:
    """The simulated clock does not move while a call waits."""


@lru_cache(maxsize=100_000)
def stored(content: bytes) -> Ledger:
    """The ledger of these bytes; the checks between all steps read it again and again."""
    return read_ledger(content, path="simulated ledger")


#: Rows of the fault matrix that meet in one life; each life counts once for each that it met.
FAULTS = ("F1", "F2", "F3", "F4", "F6", "F7", "F8", "F13", "F15", "F16", "F17", "F23")


class ReconcileMachine(RuleBasedStateMachine):
    """One session, one intent, any number of processes (each call is one)."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = SimulatedScheduler()
        self.site = SimulatedSite(self.scheduler)
        self.bound = 0
        self.paused_counts: list[int] = []
        self.deadlines: dict[str, int] = {}
        self.recorded: set[str] = set()
        self.met: set[str] = set()

    @initialize(min_job_age_seconds=st.sampled_from([300, 300, 20, 2]))
    def create(self, min_job_age_seconds: int = 300) -> None:
        self.scheduler.min_job_age_seconds = min_job_age_seconds
        if min_job_age_seconds < 300:
            self.met.add("F8")
        outcome = carry_out(self.site, lambda o: plan_head(o, "sim", HEAD, WORKER, fresh_tokens()), pause=no_pause)
        assert outcome.ledger.head is not None
        self.site.start_job(outcome.ledger.head.slurm_job_id)
        self.site.watch = self.check

    def check(self) -> None:
        """Every invariant that holds at any moment, between any two steps of a commit."""
        self.never_more_than_asked_for()
        self.every_job_is_known_to_the_ledger()
        self.deadlines_never_move()
        self.a_drain_starts_after_its_deadline_is_written()
        self.one_job_per_token()
        self.nothing_begins_without_its_lock()

    def teardown(self) -> None:
        for row in ("F23", *self.met):
            executed(row, simulated=1)

    # -- what processes do -------------------------------------------------------------------------

    @rule(count=counts, fault=faults, submissions=answers, pending_timeout=st.sampled_from([None, None, 60]))
    def reconcile(
        self, count: int, fault: tuple[str, int] | None, submissions: list[str], pending_timeout: int | None
    ) -> None:
        intent = WorkerIntent("w", count, drain_timeout=30, pending_timeout=pending_timeout)
        before = len(self.counted())
        self.scheduler.submission_answers = submissions
        self.site.fault = fault
        if {"lost", "late", "nothing"} & {*submissions[:count]}:
            self.met.add("F4")
        if fault is not None:
            self.met.add({"die": "F1", "power": "F2", "pause": "F13", "lose": "F3"}[fault[0]])
        if fault is not None and fault[0] == "pause":
            self.paused_counts.append(count)
        self.bound = max(before, count, *self.paused_counts, 0)
        jobs_before = set(self.scheduler.jobs)
        try:
            outcome = self.call(intent)
        except (RemoteError, LockTimeout):
            pass
        else:
            new = set(self.scheduler.jobs) - jobs_before
            assert set(outcome.submitted) <= new
            assert not set(outcome.recovered) & new, "what this call submitted was not left behind by another"
            if self.scheduler.silent:
                assert not new
        self.site.fault = None
        self.scheduler.submission_answers = []

    def call(self, intent: WorkerIntent):  # type: ignore[no-untyped-def]
        request = WorkerRequest(intents=(intent,))

        def decide(observation: Observation) -> Plan:
            assert observation.ledger is not None
            return plan_workers(observation.ledger, observation, request, fresh_tokens())

        return carry_out(self.site, decide, pause=no_pause)

    # -- what the world does -----------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 20, 45, 80, 130, 400]))
    def time_passes(self, seconds: int) -> None:
        self.scheduler.advance(seconds)

    @rule(choice=st.integers(0, 50))
    def job_starts(self, choice: int) -> None:
        waiting = [job for job in self.scheduler.jobs.values() if job.state == "PENDING"]
        if waiting:
            self.site.start_job(waiting[choice % len(waiting)].slurm_job_id)

    @rule(choice=st.integers(0, 50), state=st.sampled_from(["COMPLETED", "NODE_FAIL", "PREEMPTED"]))
    def worker_ends(self, choice: int, state: str) -> None:
        head = self.ledger().head
        assert head is not None
        running = [
            job
            for job in self.scheduler.jobs.values()
            if job.state == "RUNNING" and job.slurm_job_id != head.slurm_job_id
        ]
        if running:
            self.scheduler.end(running[choice % len(running)].slurm_job_id, state)
            self.met |= {"NODE_FAIL": {"F15"}, "PREEMPTED": {"F17"}}.get(state, set())

    @rule(choice=st.integers(0, 50))
    def worker_is_requeued(self, choice: int) -> None:
        head = self.ledger().head
        running = [job for job in self.scheduler.jobs.values() if job.state == "RUNNING" and job.works]
        running = [job for job in running if head is None or job.slurm_job_id != head.slurm_job_id]
        if running:
            self.scheduler.requeue(running[choice % len(running)].slurm_job_id)
            self.met.add("F16")

    @rule()
    def late_submissions_arrive(self) -> None:
        self.scheduler.deliver_late()

    @rule()
    def suspended_commits_go_on(self) -> None:
        self.bound = max(len(self.counted()), *self.paused_counts, 0)
        self.site.wake()
        self.paused_counts.clear()

    @rule(silent=st.booleans())
    def controller(self, silent: bool) -> None:
        self.scheduler.silent = silent
        if silent:
            self.met.add("F6")

    @rule(answers=st.booleans())
    def accounting(self, answers: bool) -> None:
        self.scheduler.accounting = answers
        if not answers:
            self.met.add("F7")

    # -- what must hold ----------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        content = self.site.files.ledger
        assert content is not None
        return stored(content)

    def coming(self) -> list[SimulatedJob]:
        """Every job that works or may still work, those on their way included."""
        return [*self.site.working(), *self.site.on_their_way()]

    def counted(self) -> list[SimulatedJob]:
        """Those that no deadline ends, the head apart."""
        ledger = self.ledger()
        released = {record.token for record in ledger.records() if record.drain_deadline is not None}
        head = None if ledger.head is None else ledger.head.token
        return [job for job in self.coming() if job.token not in released and job.token != head]

    @invariant()
    def never_more_than_asked_for(self) -> None:
        if self.site.files.ledger is not None:
            assert len(self.counted()) <= self.bound, [attrs.asdict(job) for job in self.counted()]

    @invariant()
    def every_job_is_known_to_the_ledger(self) -> None:
        if self.site.files.ledger is None:
            return
        ledger = self.ledger()
        self.recorded |= {record.token or "" for record in ledger.records()}
        known = self.recorded | set(ledger.worker_submissions) | set(ledger.revoked_tokens)
        assert all(job.token in known for job in self.coming())

    @invariant()
    def deadlines_never_move(self) -> None:
        if self.site.files.ledger is None:
            return
        for record in self.ledger().records():
            if record.slurm_job_id in self.deadlines:
                assert record.drain_deadline == self.deadlines[record.slurm_job_id]
            elif record.drain_deadline is not None:
                self.deadlines[record.slurm_job_id] = record.drain_deadline

    @invariant()
    def a_drain_starts_after_its_deadline_is_written(self) -> None:
        drains = self.site.files.drains
        if drains:
            written = {record.token: record.drain_deadline for record in self.ledger().records()}
            assert all(written[token] == deadline for token, deadline in drains.items() if token in written)

    @invariant()
    def one_job_per_token(self) -> None:
        tokens = [job.token for job in self.coming()]
        assert len(tokens) == len(set(tokens)), "two jobs of one submission could work"

    @invariant()
    def nothing_begins_without_its_lock(self) -> None:
        assert not self.site.unguarded

    @invariant()
    def silence_is_not_an_end(self) -> None:
        if self.site.files.ledger is None or not self.scheduler.silent:
            return
        snapshot = build_snapshot(self.ledger(), self.site.observe())
        assert not snapshot.certain
        assert all(allocation.state is None for allocation in snapshot.allocations)

    @precondition(lambda self: self.site.files.ledger is not None)
    @rule(count=counts)
    def after_the_faults_the_intent_holds(self, count: int) -> None:
        """Two calls after the faults stop: exactly the intended number, and every live job in exactly one record."""
        self.site.fault = None
        self.scheduler.silent = False
        self.scheduler.deliver_late()
        self.bound = max(len(self.counted()), *self.paused_counts, count)
        self.site.wake()
        self.paused_counts.clear()
        for _ in range(4):
            self.scheduler.advance(130)
            self.bound = max(len(self.counted()), count)
            self.call(WorkerIntent("w", count, drain_timeout=30))
        head = self.ledger().head
        assert head is not None
        assert len(self.counted()) == (count if self.scheduler.jobs[head.slurm_job_id].live else len(self.counted()))
        tokens = [record.token for record in self.ledger().records()]
        live = [job for job in self.scheduler.jobs.values() if job.live]
        assert all(tokens.count(job.token) == 1 for job in live), (live, tokens)
        assert not self.ledger().worker_submissions


ReconcileMachine.TestCase.settings = settings(
    max_examples=amount(150, 10_000), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestReconcile = pytest.mark.fault(*FAULTS)(ReconcileMachine.TestCase)
