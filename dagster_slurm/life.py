"""Does a run still need its session? Read from Dagster's event log, with Dagster's own rules of what runs next."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode

# What ends a step, and what decides which steps come after it.
_TELLING = {
    dg.DagsterEventType.STEP_OUTPUT,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
}


def run_is_over(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether no step of the run is left to run or running.

    A step that is up for a retry is left to run; one whose inputs will never come is not. A run that is finished, is
    being cancelled or was deleted needs nothing.

    Raises:
        dg.DagsterError, CheckError: the event log does not make sense.
    """
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished or run.status is dg.DagsterRunStatus.CANCELING:
        return True
    if run.execution_plan_snapshot_id is None:
        return False
    snapshot = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    plan = ExecutionPlan.rebuild_from_snapshot(run.job_name, snapshot)
    entries = instance.all_logs(run_id, of_type=_TELLING)
    return plan_is_over(plan, [entry.dagster_event for entry in entries if entry.dagster_event is not None])


def plan_is_over(plan: ExecutionPlan, events: Sequence[dg.DagsterEvent]) -> bool:
    """Play the events of a run through its plan and look whether anything is left.

    Dagster keeps the rules for skipped steps, failed inputs, dynamic steps and retries in its own state machine. It is
    not public, hence this one call site; the end of a run is tested with real executors.
    """
    # Not left as a context manager is: it would complain about a plan that is not complete.
    execution = ActiveExecution(plan, retry_mode=RetryMode.ENABLED).__enter__()
    _settle(execution)
    for event in events:
        if event.is_step_up_for_retry:
            # Without its pause: a retry that has been made must not seem to lie ahead.
            execution.mark_up_for_retry(str(event.step_key))
        else:
            execution.handle_event(event)
        _settle(execution)
    return execution.is_complete


def _settle(execution: ActiveExecution) -> None:
    """Do what an executor does between events: start what can start, skip and give up what cannot."""
    while True:
        skipped, abandoned = execution.get_steps_to_skip(), execution.get_steps_to_abandon()
        for step in skipped:
            execution.mark_skipped(step.key)
        for step in abandoned:
            execution.mark_abandoned(step.key)
        if not skipped and not abandoned:
            execution.get_steps_to_execute()
            return
