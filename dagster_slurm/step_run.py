"""Run one payload for one step: put session, Pipes, policy, records and loop together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import dagster as dg
from dagster_pipes import DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.head_keeper import HeadKeeper
from dagster_slurm.patience import Pace, Patience
from dagster_slurm.payload_ids import end_earlier_attempts, messages_path, new_payload_id
from dagster_slurm.pipes import FedMessageReader, OutputLines, print_line
from dagster_slurm.policy import Policy
from dagster_slurm.recording import Recorder
from dagster_slurm.remote.transfer import pack
from dagster_slurm.run_loop import PayloadRun
from dagster_slurm.run_result import SlurmRunResult
from dagster_slurm.step import StepContext, StepEvents, op_context, step_of
from dagster_slurm.ticks import DrivenSession, Driver, Ticker

LEAST_INTERVAL_SECONDS = 5.0


@attrs.frozen(kw_only=True)
class Drive:
    """The arguments of ``SlurmComputeResource.run``."""

    payload: Path
    policy: Policy | None
    argv: tuple[str, ...]
    env: Mapping[str, str]
    interval_seconds: float
    policy_timeout_seconds: float
    restarts_with_head: int
    successor_before_seconds: float | None
    extras: Mapping[str, Any]

    def check(self) -> None:
        """Look at everything before a session is made: a wrong payload must not leave a head running.

        Raises:
            ConfigurationError: ``field`` names the argument.
        """
        if not self.interval_seconds >= LEAST_INTERVAL_SECONDS:
            raise ConfigurationError(
                f"interval_seconds must be at least {LEAST_INTERVAL_SECONDS:g}, not {self.interval_seconds}: "
                "each interval asks the scheduler.",
                field="interval_seconds",
            )
        if not self.policy_timeout_seconds > 0:
            raise ConfigurationError(
                f"policy_timeout_seconds must be above 0, not {self.policy_timeout_seconds}.",
                field="policy_timeout_seconds",
            )
        restarts = self.restarts_with_head
        if not isinstance(restarts, int) or isinstance(restarts, bool) or restarts < 0:
            raise ConfigurationError(
                f"restarts_with_head must be a whole number of at least 0, not {restarts!r}.",
                field="restarts_with_head",
            )
        before = self.successor_before_seconds
        if before is not None and not before > 0:
            raise ConfigurationError(
                f"successor_before_seconds must be above 0, or None, not {before!r}.", field="successor_before_seconds"
            )
        if self.policy is not None and not callable(self.policy):
            raise ConfigurationError(f"policy must be a function, not {self.policy!r}.", field="policy")
        if self.payload.is_dir() and not self.argv:
            raise ConfigurationError(
                f"{self.payload} is a directory, and argv does not say what to run in it.",
                field="argv",
                remedy='for example argv=["{python}", "files/main.py"].',
            )
        try:
            pack(self.payload)
        except ConfigurationError as error:
            raise ConfigurationError(error.message, field="payload", remedy=error.remedy) from error


class Sessions(Protocol):
    """Where a run's session comes from."""

    def get(self, run_id: str) -> DrivenSession: ...

    def note_interrupt(self) -> None: ...


def run_payload(
    step_context: StepContext, sessions: Sessions, drive: Drive, pace: Pace | None = None
) -> SlurmRunResult:
    """See ``SlurmComputeResource.run``; tests bring a pace of their own."""
    context = op_context(step_context)
    try:
        return _run(context, sessions.get(context.run.run_id), drive, pace or Pace())
    except Exception:
        raise
    except BaseException:
        # Dagster's interrupt, or Ctrl-C: the run ends, and with it its session, even if steps are left.
        sessions.note_interrupt()
        raise


def _run(context: dg.OpExecutionContext, session: DrivenSession, drive: Drive, pace: Pace) -> SlurmRunResult:
    step = step_of(context)
    recorder = Recorder(StepEvents(context, step), pace.clock)
    driver = Driver(
        key=step.intent_key,
        run_id=context.run.run_id,
        policy=step.policy if drive.policy is None else drive.policy,
        asset_key=None if step.asset_key is None else step.asset_key.to_user_string(),
        partition_key=step.partition_key,
        log=context.log,
        interval_seconds=drive.interval_seconds,
        policy_limit_seconds=drive.policy_timeout_seconds,
    )
    began = pace.clock()
    end_earlier_attempts(session, step.name, context.log, pace)
    payload_id = Patience(context.log, pace).ask(lambda: new_payload_id(session, step.name))
    messages = FedMessageReader(messages_path(session, payload_id))
    with dg.open_pipes_session(
        context=context,
        context_injector=dg.PipesEnvContextInjector(),
        message_reader=messages,
        extras=dict(drive.extras),
    ) as pipes_session:
        run = PayloadRun(
            session,
            payload_id,
            messages=messages,
            output=OutputLines(print_line),
            ticker=Ticker(session, driver, recorder, pace.clock),
            log=context.log,
            wanted=_wanted_by(context),
            restarts_with_head=drive.restarts_with_head,
            keeper=HeadKeeper(session, context.log, drive.successor_before_seconds),
            pace=pace,
        )
        last = run.run(
            drive.payload,
            drive.argv,
            lambda attempt: {**drive.env, **pipes_environment(pipes_session, messages_path(session, attempt))},
        )
    return SlurmRunResult(
        pipes_session,
        recorder,
        payload_id=run.payload_id,
        restarts=run.restarts,
        payload_exit_code=last.exit_code,
        duration_seconds=pace.clock() - began,
        session_dir=session.session_dir,
    )


def pipes_environment(session: dg.PipesSession, path: str) -> dict[str, str]:
    """A payload's environment for Dagster Pipes, with its messages at ``path`` on the cluster."""
    own = {DAGSTER_PIPES_MESSAGES_ENV_VAR: encode_param({"path": path})}
    return {**session.get_bootstrap_env_vars(), **own}


def _wanted_by(context: dg.OpExecutionContext) -> Callable[[], str | None]:
    """A run can be marked as ended while its step process lives on; such a step submits nothing more."""
    instance, run_id = context.instance, context.run.run_id

    def reason() -> str | None:
        run = instance.get_run_by_id(run_id)
        if run is None:
            return f"its run {run_id} was deleted."
        return f"its run is {run.status.value} in Dagster." if run.is_finished else None

    return reason
