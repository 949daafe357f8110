"""When is a run over? Real jobs are run, and every beginning of their event logs is judged."""

# Dagster reads the annotation of an op's context as it is written, hence no postponed annotations here.

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.execution.plan.plan import ExecutionPlan

from dagster_slurm.life import _TELLING, plan_is_over, run_is_over


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@dg.op
def one() -> int:
    return 1


@dg.op
def increment(number: int) -> int:
    return number + 1


@dg.op
def add(numbers: list[int]) -> int:
    return sum(numbers)


@dg.op(out=dg.Out(int, is_required=False))
def nothing() -> Iterator[dg.Output[int]]:
    yield from ()


@dg.op
def fails() -> int:
    raise RuntimeError("on purpose")


@dg.op(retry_policy=dg.RetryPolicy(max_retries=2, delay=0.01))
def second_try(context: dg.OpExecutionContext) -> int:
    if context.retry_number < 2:
        raise RuntimeError("not yet")
    return 1


@dg.op(out=dg.DynamicOut(int))
def three() -> Iterator[dg.DynamicOutput[int]]:
    for number in range(3):
        yield dg.DynamicOutput(number, mapping_key=str(number))


@dg.job
def chain() -> None:
    increment(increment(one()))


@dg.job
def failing_in_front() -> None:
    increment(increment(fails()))


@dg.job
def failing_beside() -> None:
    add([increment(one()), fails()])


@dg.job
def skipping() -> None:
    increment(increment(nothing()))


@dg.job
def skipping_beside() -> None:
    add([nothing(), one()])


@dg.job
def retrying() -> None:
    increment(second_try())


@dg.job
def dynamic() -> None:
    add(three().map(increment).collect())


def events_of(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterEvent]:
    entries = instance.all_logs(run_id, of_type=_TELLING)
    return [entry.dagster_event for entry in entries if entry.dagster_event is not None]


def plan_of(instance: dg.DagsterInstance, run_id: str) -> ExecutionPlan:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.execution_plan_snapshot_id is not None
    return ExecutionPlan.rebuild_from_snapshot(
        run.job_name, instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    )


@pytest.mark.parametrize(
    "job",
    [chain, failing_in_front, failing_beside, skipping, skipping_beside, retrying, dynamic],
    ids=lambda job: job.name,
)
def test_a_run_is_over_with_its_last_event_and_not_before(job: dg.JobDefinition, instance: dg.DagsterInstance) -> None:
    run = job.execute_in_process(instance=instance, raise_on_error=False)
    events = events_of(instance, run.run_id)
    judged = [plan_is_over(plan_of(instance, run.run_id), events[:count]) for count in range(len(events) + 1)]
    assert judged == [False] * len(events) + [True]


def test_a_step_that_may_be_tried_again_is_left_to_run(instance: dg.DagsterInstance) -> None:
    run = retrying.execute_in_process(instance=instance)
    events = events_of(instance, run.run_id)
    retry = next(i for i, event in enumerate(events) if event.is_step_up_for_retry)
    assert not plan_is_over(plan_of(instance, run.run_id), events[: retry + 1])


def test_a_selection_is_over_when_its_steps_are(instance: dg.DagsterInstance) -> None:
    run = chain.execute_in_process(instance=instance, op_selection=["one"])
    assert plan_is_over(plan_of(instance, run.run_id), events_of(instance, run.run_id))


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED])
def test_a_cancelled_run_is_over_whatever_its_steps_do(
    status: dg.DagsterRunStatus, instance: dg.DagsterInstance
) -> None:
    run = instance.create_run_for_job(chain, status=status)
    assert run_is_over(instance, run.run_id)


def test_a_run_that_begins_is_not_over(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(chain, status=dg.DagsterRunStatus.STARTED)
    assert not run_is_over(instance, run.run_id)


def test_a_run_that_was_deleted_needs_nothing(instance: dg.DagsterInstance) -> None:
    assert run_is_over(instance, "00000000-0000-0000-0000-000000000000")
