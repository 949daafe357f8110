"""A stand-in for ``SlurmComputeResource`` in your own tests: no cluster, no waiting, the real decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_slurm.allocations.result import EndResult
from dagster_slurm.allocations.settings import session_id_for
from dagster_slurm.errors import SessionNotFound
from dagster_slurm.patience import Pace
from dagster_slurm.policy import Policy
from dagster_slurm.remote.housekeeping import FoundSession
from dagster_slurm.run_facts import session_tag
from dagster_slurm.run_result import SlurmRunResult
from dagster_slurm.step import StepContext, op_context
from dagster_slurm.step_run import Drive, run_payload
from dagster_slurm.testing.session import Script, SimulatedSession


class FakeSlurmCompute:
    """Give it as the resource: ``dg.materialize([asset], resources={"compute": FakeSlurmCompute(work=[...])})``.

    Allocations live on a simulated scheduler with virtual time, so an hour of work takes a moment. The policy is asked
    as in a real run and its intents are reconciled by the real planner; the payload itself does not run.

    Args:
        work: What the payload reports with ``report_work``, one after the other; it ends after the last. The policy is
            asked at its interval of virtual time, so each report is seen once when the two agree.
        work_seconds: Virtual seconds from one report to the next.
        start_after_seconds: Virtual seconds that an allocation is pending; also what estimates say.
        exit_code: The payload's; anything but 0 raises ``PayloadFailed``.
        output: What the payload prints.
        session_name: As the field of ``SlurmComputeResource``.

    Attributes:
        sessions: The sessions by name, to be looked at by the test.
    """

    def __init__(
        self,
        *,
        work: Sequence[Mapping[str, Any]] = (),
        work_seconds: float = 30.0,
        start_after_seconds: int = 0,
        exit_code: int = 0,
        output: str = "",
        session_name: str | None = None,
    ) -> None:
        self._script = Script(
            work=tuple(work),
            work_seconds=work_seconds,
            start_after_seconds=start_after_seconds,
            exit_code=exit_code,
            output=output,
        )
        self.session_name = session_name
        self.sessions: dict[str, SimulatedSession] = {}

    def get_run_allocation_session(self, context: StepContext) -> SimulatedSession:
        """See ``SlurmComputeResource``."""
        op = op_context(context)
        session_id = session_id_for(op.run.run_id, self.session_name)
        if session_id not in self.sessions:
            op.instance.add_run_tags(op.run.run_id, {session_tag(self.session_name): session_id})
            self.sessions[session_id] = SimulatedSession(session_id, self._script)
        return self.sessions[session_id]

    def attach_run_allocation_session(self, context: StepContext) -> SimulatedSession:
        """See ``SlurmComputeResource``."""
        return self.attach_session(op_context(context).run)

    def attach_session(self, run: dg.DagsterRun | str, *, check: bool = True) -> SimulatedSession:
        """See ``SlurmComputeResource``."""
        session_id = session_id_for(run if isinstance(run, str) else run.run_id, self.session_name)
        if session_id not in self.sessions:
            raise SessionNotFound(f"There is no session {session_id}.")
        return self.sessions[session_id]

    def find_sessions(self) -> tuple[FoundSession, ...]:
        """See ``SlurmComputeResource``."""
        return tuple(
            FoundSession(session_id=name, closing=session.simulation.files.closing)
            for name, session in self.sessions.items()
        )

    def end_session(self, session_id: str, *, timeout_seconds: float = 30) -> EndResult:
        """See ``SlurmComputeResource``."""
        return self.attach_session(session_id).end(timeout_seconds=timeout_seconds)

    def remove_session(self, session_id: str) -> None:
        """See ``SlurmComputeResource``."""
        del self.sessions[session_id]

    def run(
        self,
        *,
        context: StepContext,
        payload: str | Path,
        policy: Policy | None = None,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        interval_seconds: float = 30,
        policy_timeout_seconds: float = 60,
        restarts_with_head: int = 3,
        successor_before_seconds: float | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> SlurmRunResult:
        """See ``SlurmComputeResource``; the payload is checked as there, and then only played."""
        drive = Drive(
            payload=Path(payload),
            policy=policy,
            argv=tuple(argv),
            env=dict(env or {}),
            interval_seconds=interval_seconds,
            policy_timeout_seconds=policy_timeout_seconds,
            restarts_with_head=restarts_with_head,
            successor_before_seconds=successor_before_seconds,
            extras=dict(extras or {}),
        )
        drive.check()
        session = self.get_run_allocation_session(context)
        return run_payload(context, _One(session), drive, Pace(clock=session.clock, sleep=session.pass_time))


class _One:
    """The sessions of a process, of which there is one."""

    def __init__(self, session: SimulatedSession) -> None:
        self._session = session

    def get(self, run_id: str) -> SimulatedSession:
        return self._session

    def note_interrupt(self) -> None:
        """Nothing outlives the test."""
