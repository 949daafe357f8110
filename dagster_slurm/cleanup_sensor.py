"""A sensor that ends the sessions of runs that are over, however they ended, and removes old session directories."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_slurm.errors import ConfigurationError, DagsterSlurmError
from dagster_slurm.policy_sensor import CLOSED_DOORS, check_pace, told
from dagster_slurm.remote.housekeeping import FoundSession
from dagster_slurm.rounds import Cursor, Round, TimeIsUp, call_within
from dagster_slurm.step import report_run_event

#: Two weeks: long enough to read the logs of what went wrong.
KEEP_SECONDS = 14 * 86_400
#: The same failure is written to a run's log once a day.
_REPEAT_SECONDS = 86_400.0
_LONGEST_END_SECONDS = 10.0
#: Dagster's run ids are UUIDs; what follows one in a session's name is the resource's ``session_name``.
_RUN_ID_LENGTH = 36


def session_cleanup_sensor(
    *,
    name: str = "slurm_session_cleanup",
    resource_key: str = "compute",
    minimum_interval_seconds: int = 30,
    tick_seconds: float = 40.0,
    keep_seconds: float | None = KEEP_SECONDS,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that ends sessions whose run has ended: in success or failure, cancelled, or lost.

    It goes by the directories below the resource's ``remote_base``, so it misses nothing that a daemon was not there to
    see. A session whose run this instance does not know is named in the tick and left alone: it may be another
    instance's. One that nobody uses ends itself after ``orphan_timeout_seconds``.

    Args:
        name: Its name.
        resource_key: Key of the ``SlurmComputeResource``.
        minimum_interval_seconds: From tick to tick; one that finds nothing to do is one remote command.
        tick_seconds: A tick stops after this long and the next one carries on; at most 50.
        keep_seconds: Directories of ended sessions are removed this long after their end; None keeps them.
        default_status: Whether it runs without being switched on in the UI.

    Raises:
        ConfigurationError: a number that makes no sense.
    """
    check_pace(minimum_interval_seconds, tick_seconds)
    if keep_seconds is not None and keep_seconds < 0:
        raise ConfigurationError(f"keep_seconds must not be below 0, as {keep_seconds} is.", field="keep_seconds")

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        required_resource_keys={resource_key},
        default_status=default_status,
        description="Ends the Slurm sessions of runs that are over, and removes old session directories.",
    )
    def evaluate(context: dg.SensorEvaluationContext, **_: Any) -> dg.SensorResult:
        return _Tick(context, getattr(context.resources, resource_key), tick_seconds, keep_seconds).result()

    return evaluate


class _Tick:
    """One tick of the cleanup sensor."""

    def __init__(
        self, context: dg.SensorEvaluationContext, compute: Any, tick_seconds: float, keep_seconds: float | None
    ) -> None:
        self._context = context
        self._instance: dg.DagsterInstance = context.instance
        self._compute = compute
        self._keep_seconds = keep_seconds
        self._cursor = Cursor.read(context.cursor)
        self._seconds = tick_seconds
        self._sentences: list[str] = []

    def result(self) -> dg.SensorResult:
        """Go round and tell."""
        try:
            found = call_within(self._seconds / 2, self._compute.find_sessions)
        except (DagsterSlurmError, TimeIsUp) as error:
            # No failure of the sensor: the next tick looks again.
            return dg.SensorResult(
                skip_reason=f"The sessions could not be listed: {error}", cursor=self._cursor.write()
            )
        work = {session.session_id: session for session in found if not self._is_kept(session)}
        runs = self._runs(work)
        strangers = [name for name in work if name not in runs and not _has_ended(work[name])]
        over = [name for name, run in runs.items() if _is_over(run)]
        visits = Round(over, self._cursor, self._seconds / 2, _REPEAT_SECONDS)
        while (name := visits.next()) is not None:
            if not self._visit(work[name], runs[name], visits):
                break
        if strangers:
            self._sentences.append(f"Runs not known here, left alone: {', '.join(sorted(strangers)[:10])}")
        if not self._sentences:
            self._sentences.append(f"{len(found)} session(s); nothing to end, nothing to remove.")
        return dg.SensorResult(skip_reason=told(self._sentences, len(visits.left)), cursor=visits.cursor().write())

    def _is_kept(self, session: FoundSession) -> bool:
        """Whether it has ended and its directory is not old enough to go."""
        age = session.ended_seconds_ago
        return age is not None and (self._keep_seconds is None or age < self._keep_seconds)

    def _runs(self, work: dict[str, FoundSession]) -> dict[str, dg.DagsterRun]:
        wanted = {run_id for name in work for run_id in (name, name[:_RUN_ID_LENGTH])}
        known = (
            {run.run_id: run for run in self._instance.get_runs(dg.RunsFilter(run_ids=sorted(wanted)))}
            if wanted
            else {}
        )
        found = {name: known.get(name) or known.get(name[:_RUN_ID_LENGTH]) for name in work}
        return {name: run for name, run in found.items() if run is not None}

    def _visit(self, session: FoundSession, run: dg.DagsterRun, visits: Round) -> bool:
        """End or remove one; False when no other one can be visited either."""
        try:
            if _has_ended(session):
                call_within(visits.seconds_left, lambda: self._compute.remove_session(session.session_id))
                self._sentences.append(f"{session.session_id}: its old directory was removed.")
                return True
            limit = min(_LONGEST_END_SECONDS, visits.seconds_left / 2)
            result = call_within(
                visits.seconds_left, lambda: self._compute.end_session(session.session_id, timeout_seconds=limit)
            )
        except DagsterSlurmError as error:
            self._note(session, run, f"The Slurm session could not be ended: {error}", type(error).__name__, visits)
            return not isinstance(error, CLOSED_DOORS)
        except TimeIsUp as error:
            self._note(session, run, f"The Slurm session could not be ended: {error}.", "TimeIsUp", visits)
            return True
        # The boundary between sessions: whatever goes wrong with one, the others are visited.
        except Exception as error:
            self._context.log.exception(f"Ending the session {session.session_id} failed.")
            sentence = f"Ending the Slurm session failed: {type(error).__name__}: {error}"
            self._note(session, run, sentence, type(error).__name__, visits)
            return True
        if result.complete:
            self._note(session, run, "The Slurm session has ended; no job of it is left.", "ended", visits)
        else:
            left = ", ".join(result.live) or f"{result.unresolved} submissions without a known outcome"
            self._note(session, run, f"The Slurm session is ending; still there: {left}.", "ending", visits)
        return True

    def _note(self, session: FoundSession, run: dg.DagsterRun, sentence: str, kind: str, visits: Round) -> None:
        self._sentences.append(f"{session.session_id}: {sentence}")
        if visits.is_news(session.session_id, kind):
            report_run_event(
                self._instance, run, sentence, {"slurm/session": dg.MetadataValue.text(session.session_id)}
            )


def _has_ended(session: FoundSession) -> bool:
    return session.ended_seconds_ago is not None


def _is_over(run: dg.DagsterRun) -> bool:
    return run.is_finished or run.status is dg.DagsterRunStatus.CANCELING
