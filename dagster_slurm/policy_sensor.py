"""Sensors from factories. They run in Dagster's daemon, one short tick at a time, whatever happens to the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_slurm.errors import (
    AuthenticationFailed,
    ConfigurationError,
    DagsterSlurmError,
    HostKeyRejected,
    HostUnreachable,
    SessionNotFound,
)
from dagster_slurm.policy import Policy
from dagster_slurm.recording import REPEAT_SECONDS, essence, tick_metadata
from dagster_slurm.rounds import Cursor, Round, TimeIsUp, call_within
from dagster_slurm.run_facts import find_policies, session_tag, step_assets
from dagster_slurm.step import report_run_event
from dagster_slurm.watching import Seen, Watch, watch_session

#: A tick of Dagster's daemon may last 60 s; what is not done by then is done by the next one.
LONGEST_TICK_SECONDS = 50.0
_REPOSITORY_TAG = ".dagster/repository"
_SENTENCES_SHOWN = 10


def worker_policy_sensor(
    *,
    name: str = "slurm_worker_policies",
    resource_key: str = "compute",
    minimum_interval_seconds: int = 60,
    tick_seconds: float = 40.0,
    policy_timeout_seconds: float = 10.0,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that looks after the sessions of all runs in progress.

    While a step follows its payload it asks its own policy; the sensor then only observes and enforces deadlines. When
    no step does (its process was killed, or the asset's own code does not use ``run``), the sensor asks the policy on
    the asset. What it sees is recorded as observations of the asset and in the run's own log.

    Args:
        name: Its name.
        resource_key: Key of the ``SlurmComputeResource``.
        minimum_interval_seconds: From tick to tick; each asks the scheduler once or twice for each session.
        tick_seconds: A tick stops after this long and the next one carries on; at most 50.
        policy_timeout_seconds: How long the policies of one session may take together.
        default_status: Whether it runs without being switched on in the UI.

    Raises:
        ConfigurationError: a number that makes no sense.
    """
    check_pace(minimum_interval_seconds, tick_seconds)
    if not 0 < policy_timeout_seconds <= tick_seconds:
        raise ConfigurationError(
            f"policy_timeout_seconds must be above 0 and at most tick_seconds, not {policy_timeout_seconds}.",
            field="policy_timeout_seconds",
        )

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        required_resource_keys={resource_key},
        default_status=default_status,
        description="Asks the worker policies of runs in progress that no step asks, and enforces drain deadlines.",
    )
    def evaluate(context: dg.SensorEvaluationContext, **_: Any) -> dg.SensorResult:
        # Called directly, as in tests, Dagster passes the resources once more.
        return _Tick(context, getattr(context.resources, resource_key), tick_seconds, policy_timeout_seconds).result()

    return evaluate


def check_pace(minimum_interval_seconds: int, tick_seconds: float) -> None:
    """Raise ConfigurationError for a pace that Dagster or a scheduler would not bear."""
    if minimum_interval_seconds < 5:
        raise ConfigurationError(
            f"minimum_interval_seconds must be at least 5, not {minimum_interval_seconds}: a tick asks the scheduler.",
            field="minimum_interval_seconds",
        )
    if not 0 < tick_seconds <= LONGEST_TICK_SECONDS:
        raise ConfigurationError(
            f"tick_seconds must be above 0 and at most {LONGEST_TICK_SECONDS:g}, not {tick_seconds}: Dagster ends a "
            "tick after 60 s.",
            field="tick_seconds",
        )


def is_ours(run: dg.DagsterRun, context: dg.SensorEvaluationContext) -> bool:
    """Whether the run was launched from the sensor's own code location; one without a word about that may be."""
    said, origin = run.tags.get(_REPOSITORY_TAG), context.code_location_origin
    return said is None or origin is None or said == f"{context.repository_name}@{origin.location_name}"


def told(sentences: Sequence[str], left: int) -> str:
    """What the tick's line in the UI says."""
    shown = list(sentences[:_SENTENCES_SHOWN])
    if len(sentences) > len(shown):
        shown.append(f"and {len(sentences) - len(shown)} more")
    if left:
        shown.append(f"{left} left for the next tick")
    return " | ".join(shown)


#: Nothing else on this login node can be asked either, and asking again and again may lock an account.
CLOSED_DOORS = (HostUnreachable, HostKeyRejected, AuthenticationFailed)


class _Tick:
    """One tick of the policy sensor."""

    def __init__(
        self, context: dg.SensorEvaluationContext, compute: Any, tick_seconds: float, policy_timeout_seconds: float
    ) -> None:
        self._context = context
        self._instance: dg.DagsterInstance = context.instance
        self._compute = compute
        self._policy_timeout_seconds = policy_timeout_seconds
        self._policies = _policies_of(context)
        tag = session_tag(getattr(compute, "session_name", None))
        started = self._instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        self._runs = {run.run_id: run for run in started if tag in run.tags and is_ours(run, context)}
        self._round = Round(self._runs, Cursor.read(context.cursor), tick_seconds, REPEAT_SECONDS)
        self._sentences: list[str] = []
        self._events: list[dg.AssetObservation] = []

    def result(self) -> dg.SensorResult:
        """Go round and tell."""
        while (run_id := self._round.next()) is not None:
            if not self._visit(self._runs[run_id]):
                break
        if not self._runs:
            self._sentences.append("No run in progress has a Slurm session.")
        return dg.SensorResult(
            asset_events=self._events,
            cursor=self._round.cursor().write(),
            skip_reason=told(self._sentences, len(self._round.left)),
        )

    def _visit(self, run: dg.DagsterRun) -> bool:
        """Visit one session; False when no other one can be visited either."""
        try:
            seen = self._look(run)
        except SessionNotFound as error:
            self._note(run, f"There is no session to look at. {error.message}", "SessionNotFound")
        except DagsterSlurmError as error:
            self._note(run, f"The session could not be looked at. {error.message}", type(error).__name__)
            return not isinstance(error, CLOSED_DOORS)
        except TimeIsUp as error:
            self._note(run, f"The session could not be looked at: {error}.", "TimeIsUp")
        # The boundary between sessions: whatever goes wrong with one, the others are visited.
        except Exception as error:
            self._context.log.exception(f"Looking at the session of run {run.run_id} failed.")
            self._note(run, f"Looking at the session failed: {type(error).__name__}: {error}", type(error).__name__)
        else:
            for one in seen:
                self._record(run, one)
        return True

    def _look(self, run: dg.DagsterRun) -> tuple[Seen, ...]:
        now = self._instance.get_run_by_id(run.run_id)
        if now is None or now.status is not dg.DagsterRunStatus.STARTED:
            return ()
        watch = Watch(
            run_id=run.run_id,
            assets=step_assets(self._instance, run.run_id, self._policies),
            log=self._context.log,
            policy_timeout_seconds=min(self._policy_timeout_seconds, self._round.seconds_left / 2),
        )
        # Watching looks first of all, so attaching need not.
        return call_within(
            self._round.seconds_left, lambda: watch_session(self._compute.attach_session(run, check=False), watch)
        )

    def _note(self, run: dg.DagsterRun, sentence: str, kind: str) -> None:
        self._sentences.append(f"{run.run_id[:8]}: {sentence}")
        if self._round.is_news(run.run_id, kind):
            report_run_event(self._instance, run, sentence, {})

    def _record(self, run: dg.DagsterRun, seen: Seen) -> None:
        tick, asset = seen.tick, seen.asset
        self._sentences.append(f"{run.run_id[:8]}{'' if asset is None else ' ' + asset.intent_key}: {tick.decision}")
        news = self._round.is_news(f"{run.run_id} {'' if asset is None else asset.intent_key}".rstrip(), essence(tick))
        if not (news or tick.acted):
            return
        metadata = tick_metadata(tick)
        report_run_event(self._instance, run, tick.decision, metadata)
        if asset is not None:
            self._events.append(
                dg.AssetObservation(
                    asset_key=asset.asset_key,
                    partition=asset.partition_key,
                    description=tick.decision,
                    metadata={**metadata, "slurm/run": dg.MetadataValue.dagster_run(run.run_id)},
                )
            )


def _policies_of(context: dg.SensorEvaluationContext) -> Mapping[dg.AssetKey, Policy]:
    repository = context.repository_def
    return {} if repository is None else find_policies(repository.assets_defs_by_key)
