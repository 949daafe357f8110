"""A whole session in memory, with virtual time: real decisions, a simulated scheduler, and a payload that is played."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.estimate import StartProbe
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.observation import Observation, Report
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.errors import RemoteError
from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.payload_scripts import Mark, PayloadPoll
from dagster_slurm.session.commit_loop import carry_out, fresh_tokens
from dagster_slurm.session.session import AllocationSession
from dagster_slurm.slurm.replies import ListedJob, TestOnlyReply
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite


@attrs.frozen(kw_only=True)
class Script:
    """How the simulated cluster and payload behave.

    Attributes:
        work: What the payload reports with ``report_work``, one after the other; it ends after the last.
        work_seconds: Virtual seconds from one report to the next.
        start_after_seconds: Virtual seconds that a job is pending.
        exit_code: The payload's.
        output: What it prints.
    """

    work: Sequence[Mapping[str, Any]] = ()
    work_seconds: float = 30.0
    start_after_seconds: int = 0
    exit_code: int = 0
    output: str = ""


class _NoShell:
    """There is no login node."""

    address = "simulated"
    round_trips = 0

    def run(self, body: str, *, timeout_seconds: float = 60.0) -> Reply:
        raise RemoteError("A simulated session has no login node to run a script on.")

    def close(self) -> None:
        """Nothing is open."""


@attrs.define
class _Site(SimulatedSite):
    """With what agents and payloads report."""

    marks: dict[str, Mapping[str, object]] = attrs.field(factory=dict)
    marked_at: dict[str, int] = attrs.field(factory=dict)
    work: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)

    def observe(self) -> Observation:
        """See SimulatedSite; every node of a running job has joined Ray."""
        seen = SimulatedSite.observe(self)
        ledger = seen.ledger
        if ledger is None:
            return seen
        listing = attrs.evolve(seen.listing, jobs=tuple(_granted(job, ledger) for job in seen.listing.jobs))
        nodes = [
            {"slurm_job_id": job.slurm_job_id, "node": node, "ray_node_id": f"ray-{node}", "state": "ALIVE"}
            for job in listing.jobs
            for node in job.nodes
        ]
        head = None if ledger.head is None else ledger.head.slurm_job_id
        return attrs.evolve(
            seen,
            listing=listing,
            cluster={} if head is None else {head: Report(content={"nodes": nodes, "demand": []}, age_seconds=0)},
            work=self.work,
            drivers={
                name: Report(content=mark, age_seconds=self.scheduler.now - self.marked_at[name])
                for name, mark in self.marks.items()
            },
        )


def _granted(job: ListedJob, ledger: Ledger) -> ListedJob:
    record = ledger.record(job.slurm_job_id)
    shape = None if record is None else ledger.shapes.get(record.shape)
    if shape is None:
        return job
    nodes = shape.nodes or 1
    gpus = nodes * int(str(shape.gpus_per_node or 0).rpartition(":")[2])
    tres = f"cpu={nodes},mem=100M,node={nodes},billing=1" + (f",gres/gpu={gpus}" if gpus else "")
    names = tuple(f"{node}-{number}" for node in job.nodes for number in range(nodes))
    return attrs.evolve(job, tres=tres, requested_nodes=nodes, nodes=names, partition=shape.partition or job.partition)


class SimulatedSession(AllocationSession):
    """An ``AllocationSession`` without a cluster: what it decides is real, what it decides on is simulated.

    Args:
        session_id: Its name.
        script: How cluster and payload behave.
        head: Shape of its head.
        worker: Shape that workers inherit from.
    """

    def __init__(
        self,
        session_id: str,
        script: Script,
        *,
        head: EffectiveShape = EffectiveShape(head_only=True),  # noqa: B008 (it is frozen)
        worker: EffectiveShape = EffectiveShape(),  # noqa: B008
    ) -> None:
        self.scheduler = SimulatedScheduler()
        self.simulation = _Site(self.scheduler, session_id)
        settings = SessionSettings(session_id=session_id, session_dir=f"/simulated/sessions/{session_id}")
        super().__init__(_NoShell(), self.simulation, settings)
        self._script = script
        self._began_at = self.scheduler.now
        self._part = 0.0
        self._taken_at: int | None = None
        self._cancelled = False
        outcome = carry_out(
            self.simulation,
            lambda seen: plan_head(seen, session_id, head, worker, fresh_tokens()),
            pause=self.pass_time,
        )
        self._ledger = outcome.ledger
        self.pass_time(0)

    # -- virtual time ------------------------------------------------------------------------------

    def clock(self) -> float:
        """Virtual seconds since the session began."""
        return self.scheduler.now - self._began_at + self._part

    def pass_time(self, seconds: float) -> None:
        """Let virtual time pass: jobs start, drain, and meet their time limit."""
        whole, self._part = divmod(self._part + seconds, 1.0)
        self.scheduler.advance(int(whole))
        for job in list(self.scheduler.jobs.values()):
            if job.state == "PENDING" and self.scheduler.now - job.submitted_at >= self._script.start_after_seconds:
                self.simulation.start_job(job.slurm_job_id)
            elif job.state == "RUNNING" and job.token in self.simulation.files.drains:
                self.scheduler.end(job.slurm_job_id, "COMPLETED")

    # -- the parts that need a cluster ---------------------------------------------------------------

    def probe_starts(self, options: Sequence[tuple[str, ...]]) -> tuple[StartProbe, ...]:
        """Every candidate starts when the script says."""
        answer = TestOnlyReply(start_in_seconds=self._script.start_after_seconds, error=None, answered=True)
        return (StartProbe(answer),) * len(options)

    def logs(self, slurm_job_id: str) -> str:
        """Nothing is logged."""
        return ""

    def start_payload(
        self,
        payload: Path,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        payload_id: str | None = None,
    ) -> str:
        """Nothing runs: the script tells what the payload says."""
        self._taken_at, self._cancelled = None, False
        return payload_id or f"{self.scheduler.now}-{secrets.token_hex(4)}"

    def poll_payload(
        self, payload_id: str, *, messages_offset: int = 0, log_offset: int = 0, mark: Mark | None = None
    ) -> PayloadPoll:
        """Where the script stands."""
        if mark is not None:
            self.simulation.marks[payload_id], self.simulation.marked_at[payload_id] = dict(mark), self.scheduler.now
        head = self.scheduler.jobs.get("1")
        if self._taken_at is None and head is not None and head.state == "RUNNING":
            self._taken_at = self.scheduler.now
        state, work = self._state()
        if work is not None:
            self.simulation.work[payload_id] = work
        ended = state in ("succeeded", "failed")
        return PayloadPoll(
            state=state,
            exit_code=self._script.exit_code if ended else None,
            message=f"exited with status {self._script.exit_code}" if state == "failed" else None,
            head_job_id=None if self._taken_at is None else "1",
            ended_with_head=False,
            messages=b"",
            log=b"" if self._taken_at is None else self._script.output.encode()[log_offset:],
            messages_left=False,
            log_left=False,
            work=work,
            closing=self.simulation.files.closing,
        )

    def _state(self) -> tuple[str, Mapping[str, Any] | None]:
        if self._cancelled:
            return "cancelled", None
        if self._taken_at is None:
            return "waiting", None
        step = int((self.scheduler.now - self._taken_at) / self._script.work_seconds)
        if step >= len(self._script.work):
            last = self._script.work[-1] if self._script.work else None
            return ("succeeded" if self._script.exit_code == 0 else "failed"), last
        return "running", self._script.work[step]

    def cancel_payload(self, payload_id: str) -> None:
        """It ends at once."""
        self._cancelled = True

    def replace_payloads(self, step: str, attempt: str) -> tuple[str, ...]:
        """There is one payload, and no earlier attempt of it."""
        return ()
