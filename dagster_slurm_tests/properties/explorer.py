"""Every interleaving of a few processes that reconcile one intent, with the simulator's steps and the real planners.

Each process looks (ledger, open submissions, listing: three reads), decides with the real planner, commits step by step
and records the ids that it got. The scheduler takes a submission at once, or its answer is lost, or it comes later. At
any moment a process may die, be suspended for as long as one likes, lose the reply to its commit, have its lock taken
over although it lives, and a job may start. Time does not pass and needs not: who waits for a time may stop waiting.

A state that was seen is not gone through again. What bounds it all is the number of processes, of looks that each may
take, and a budget of mishaps.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import attrs

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.lifecycle import plan_head, plan_outcomes
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRequest, Committed, Plan, Submit
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.errors import LockTimeout
from dagster_slurm.session.commit_loop import carry_out, fresh_tokens
from dagster_slurm.testing.commit import BEGINNINGS, LOCK_STALE_SECONDS, SimulatedCommit
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.builders import HEAD_SHAPE, WORKER_SHAPE
from dagster_slurm_tests.properties.explorer_state import (
    Process,
    State,
    copy_state,
    key_of,
    key_of_site,
    no_look,
    seen_key,
)
from dagster_slurm_tests.properties.test_reconcile_machine import stored


@attrs.frozen(kw_only=True)
class Setting:
    """What is explored.

    Attributes:
        counts: For each process, the number of allocations that it asks for.
        deaths, lost_replies, takeovers, mishaps: See State.
        sbatch: What a submission may meet besides being taken at once: "lost" or "late".
        attempts: Looks of one process, at most.
        starts: Whether jobs start at any moment, or only when everything is over.
        reads: Order of the reads of a look.
        asks_by_id: Whether a second question, by id, is asked about recorded jobs that the listing lacks.
        commit_type: How commits are made.
    """

    counts: tuple[int, ...]
    deaths: int = 1
    lost_replies: int = 1
    takeovers: int = 1
    mishaps: int = 1
    sbatch: tuple[str, ...] = ("lost", "late")
    attempts: int = 2
    starts: bool = True
    reads: tuple[str, ...] = ("ledger", "traces", "listing")
    asks_by_id: bool = True
    commit_type: type[SimulatedCommit] = SimulatedCommit


@attrs.frozen(kw_only=True)
class Result:
    """What an exploration found: how many states and ends, and the way to the first violation."""

    states: int
    ends: int
    seconds: float
    complete: bool
    violation: str | None = None
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = self.violation or ("no violation" if self.complete else "not finished")
        return f"{self.states} states, {self.ends} ends, {self.seconds:.0f} s: {found}"


class Violation(Exception):
    """Something that must hold does not."""


class Explorer:
    """Goes through every state that a setting can reach, depth first."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plans: dict[object, Plan] = {}
        self._ends: set[object] = set()
        self._alike = len(set(setting.counts)) == 1

    def run(self, *, most_states: int | None = None) -> Result:
        """Explore until the first violation, until everything was seen, or up to so many states."""
        began = time.monotonic()
        first = self._first()
        seen = {hash(key_of(first))}
        stack: list[tuple[State, Any]] = [(first, None)]
        violation, way = None, None
        while stack and violation is None and (most_states is None or len(seen) < most_states):
            state, way = stack.pop()
            try:
                for label, following in self._following(state):
                    way_there = (label, way)
                    self._check(following)
                    key = hash(key_of(following))
                    if key not in seen:
                        seen.add(key)
                        stack.append((following, way_there))
            except Violation as found:
                violation = str(found)
        return Result(
            states=len(seen),
            ends=len(self._ends),
            seconds=time.monotonic() - began,
            complete=violation is None and not stack,
            violation=violation,
            way=() if violation is None else _labels(way),
        )

    def _first(self) -> State:
        setting = self._setting
        # Sites without accounting are the harder ones: nothing tells of a job that a listing lacks.
        site = SimulatedSite(SimulatedScheduler(accounting=False))
        tokens = (f"{n:032x}" for n in itertools.count(1))
        carry_out(site, lambda o: plan_head(o, "sim", HEAD_SHAPE, WORKER_SHAPE, tokens), pause=lambda _: None)
        site.start_job("1")
        site.commit_type = setting.commit_type
        processes = [Process(count, setting.attempts) for count in setting.counts]
        return State(site, processes, setting.deaths, setting.lost_replies, setting.takeovers, setting.mishaps)

    # -- every next step -----------------------------------------------------------------------------

    def _following(self, state: State) -> Iterator[tuple[str, State]]:
        working = [number for number, process in enumerate(state.processes) if not process.over]
        # What a process does with an answer concerns nobody else: the order of that and of other steps is all one.
        answered = [n for n in working if (c := state.processes[n].commit) is not None and c.answer is not None]
        for number in answered[:1] or working:
            for label, following in self._process_steps(state, number, state.processes[number]):
                yield f"{'ABCDEF'[number]} {label}", following
            if self._alike and not state.processes[number].began:
                # Processes that ask for the same are told apart by their first step only: let them come in order.
                break
        if answered:
            return
        if state.site.scheduler.late:
            following = copy_state(state)
            following.site.scheduler.deliver_late()
            yield "a late job comes", following
        if self._setting.starts:
            for job in state.site.scheduler.jobs.values():
                if job.state == "PENDING":
                    following = copy_state(state)
                    following.site.start_job(job.slurm_job_id)
                    yield f"job {job.slurm_job_id} starts", following
        if not working:
            self._check_end(state)

    def _process_steps(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        commit = process.commit
        if commit is None:
            following = copy_state(state)
            yield self._read(following, number), following
            return
        if state.deaths and commit.next_step != "lock":
            # One that dies before it has the lock leaves nothing that others see.
            following = copy_state(state)
            self._die(following, number)
            yield "dies", following
        if commit.answer is not None:
            following = copy_state(state)
            self._hear(following, number)
            yield "hears", following
            if state.lost_replies and isinstance(commit.answer, Committed):
                following = copy_state(state)
                following.lost_replies -= 1
                self._look_again(following.processes[number])
                yield "loses the reply", following
            return
        for answer in self._answers(state, commit):
            following = copy_state(state)
            label = self._step(following, number, answer)
            if label is not None:
                yield label, following

    def _answers(self, state: State, commit: SimulatedCommit) -> tuple[str, ...]:
        mishaps = self._setting.sbatch if commit.next_step == "sbatch" and state.mishaps else ()
        return ("ok", *mishaps)

    def _read(self, state: State, number: int) -> str:
        """The next read of a look; after the last one the decision, which nobody else can see."""
        process, site = state.processes[number], state.site
        what = self._setting.reads[len(process.seen)]
        read = {
            "ledger": lambda: site.files.ledger,
            "traces": site.traces,
            "listing": lambda: site.scheduler.listing("dagster-sim"),
        }
        process.seen[what] = read[what]()
        process.began = True
        if len(process.seen) == len(self._setting.reads):
            self._decide(state, number)
        return f"reads {what}"

    def _decide(self, state: State, number: int) -> None:
        process, site = state.processes[number], state.site
        content: bytes = process.seen["ledger"]
        seen, ledger = process.seen, stored(content)
        if self._setting.asks_by_id:
            # The second question is asked now, about jobs that the listing lacked.
            observation = site.look(ledger, _sum(content), seen["traces"], seen["listing"])
            seen["listing"] = observation.listing
        key = (seen_key(seen), number, process.attempts, process.own_tokens, frozenset(site.files.drains))
        plan = self._plans.get(key)
        if plan is None:
            observation = Observation(
                login_clock=site.scheduler.now,
                ledger=ledger,
                ledger_sha256=_sum(content),
                traces=seen["traces"],
                listing=seen["listing"],
                drains=frozenset(site.files.drains),
            )
            request = WorkerRequest(intents=(WorkerIntent("w", process.count),), own_tokens=process.own_tokens)
            plan = plan_workers(ledger, observation, request, _tokens(number, process.attempts))
            self._plans[key] = plan
        process.seen = {}
        if not plan.changes(stored(content)):
            process.over = True
            return
        process.own_tokens |= {effect.token for effect in plan.effects if isinstance(effect, Submit)}
        self._begin(state, number, plan, content)

    def _begin(self, state: State, number: int, plan: Plan, decided_on: bytes) -> None:
        process, site = state.processes[number], state.site
        nonce = f"{number + 1:016x}{process.attempts:08x}{int(process.noting):08x}"
        request = CommitRequest(
            nonce=nonce,
            expected_sha256=_sum(decided_on),
            observed_at=site.scheduler.now,
            ledger=attrs.evolve(plan.ledger, last_commit=nonce).to_bytes(),
            effects=plan.effects,
        )
        process.commit = site.begin(request)
        process.commit.look = no_look
        # Files under its own names, which nobody else looks for.
        process.commit.step()

    def _step(self, state: State, number: int, answer: str) -> str | None:
        """The next step of a commit; None when it has to wait for the lock."""
        commit, files = state.processes[number].commit, state.site.files
        assert commit is not None
        before, waits = files.ledger, commit.next_step in ("lock", "take_over")
        state.site.scheduler.submission_answers = [answer]
        state.mishaps -= answer != "ok"
        held = files.lock_owner is not None and files.owner_alive
        if waits and held and state.takeovers and commit.next_step == "lock":
            state.takeovers -= 1
            files.lock_taken_at -= LOCK_STALE_SECONDS
        try:
            label = commit.step()
        except LockTimeout:
            if commit._former is None:
                return None
            # Somebody was faster behind the fence: back to waiting.
            commit.agenda.insert(0, ("lock", None))
            commit._former = None
            return "lost the race for the lock"
        finally:
            files.lock_taken_at = state.site.scheduler.now
        if label in BEGINNINGS and files.lock_owner != commit.request.nonce:
            raise Violation("an effect began without its lock")
        if files.ledger != before and _sum(before) != commit.request.expected_sha256:
            raise Violation("a ledger was replaced that the new one was not decided on")
        if not commit.agenda and commit.answer is None:
            commit.step()
        return f"{label or 'is refused'}{'' if answer == 'ok' else ' (' + answer + ')'}"

    def _die(self, state: State, number: int) -> None:
        process, files = state.processes[number], state.site.files
        assert process.commit is not None
        state.deaths -= 1
        if files.lock_owner == process.commit.request.nonce:
            files.owner_alive = False
        process.over, process.commit, process.seen = True, None, {}

    def _hear(self, state: State, number: int) -> None:
        process = state.processes[number]
        commit, noting = process.commit, process.noting
        assert commit is not None
        process.commit, process.noting = None, False
        answer = commit.answer
        if not isinstance(answer, Committed):
            process.over = noting
            if not noting:
                self._look_again(process)
            return
        process.again = process.again or bool(answer.revoked)
        if answer.submissions and not noting:
            ledger = attrs.evolve(stored(commit.request.ledger), last_commit=commit.request.nonce)
            plan = plan_outcomes(ledger, answer)
            if plan.changes(ledger):
                process.noting = True
                self._begin(state, number, plan, commit.request.ledger)
                return
        if process.again:
            self._look_again(process)
        else:
            process.over = True

    def _look_again(self, process: Process) -> None:
        process.commit, process.noting, process.again = None, False, False
        process.attempts -= 1
        process.over = process.attempts == 0

    # -- what must hold ------------------------------------------------------------------------------

    def _check(self, state: State) -> None:
        site = state.site
        assert site.files.ledger is not None
        ledger = stored(site.files.ledger)
        coming = [*site.working(), *site.on_their_way()]
        released = {record.token for record in ledger.records() if record.drain_deadline is not None}
        counted = [job for job in coming if job.token not in released and job.slurm_job_id != "1"]
        if len(counted) > max(self._setting.counts):
            raise Violation(f"{len(counted)} allocations could work")
        known = {record.token for record in ledger.records()} | set(ledger.worker_submissions)
        known |= set(ledger.revoked_tokens)
        if not all(job.token in known for job in coming):
            raise Violation("a job could work that the ledger does not know")
        tokens = [job.token for job in coming]
        if len(tokens) != len(set(tokens)):
            raise Violation("two jobs of one submission could work")

    def _check_end(self, state: State) -> None:
        """Nobody is left who would repair it: a new process must find exactly what it asks for."""
        key = key_of_site(state.site)
        if key in self._ends:
            return
        self._ends.add(key)
        site, count = copy_state(state).site, self._setting.counts[0]
        site.commit_type = SimulatedCommit
        site.scheduler.deliver_late()
        for _ in range(4):
            for job in list(site.scheduler.jobs):
                site.start_job(job)
            site.scheduler.advance(130)
            request = WorkerRequest(intents=(WorkerIntent("w", count, drain_timeout=0),))
            carry_out(
                site,
                lambda o, r=request: plan_workers(o.ledger, o, r, fresh_tokens()),  # type: ignore[misc]
                pause=lambda _: None,
            )
        assert site.files.ledger is not None
        ledger = stored(site.files.ledger)
        live = [job.token for job in site.scheduler.jobs.values() if job.live and job.slurm_job_id != "1"]
        recorded = [record.token for record in ledger.records()]
        if len(live) != count or any(recorded.count(token) != 1 for token in live):
            raise Violation(f"{len(live)} allocations at the end, {count} asked for")


def _labels(way: Any) -> tuple[str, ...]:
    labels = []
    while way is not None:
        label, way = way
        labels.append(label)
    return tuple(reversed(labels))


@lru_cache(maxsize=100_000)
def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tokens(number: int, attempts: int) -> Iterator[str]:
    return (f"{number + 1:08x}{attempts:08x}{n:016x}" for n in itertools.count(1))
