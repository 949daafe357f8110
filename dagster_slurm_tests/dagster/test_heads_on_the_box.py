"""Heads that go under a payload, on a real Slurm with a real Ray: election, promotion, and no work done twice."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import dagster as dg
import pytest

from dagster_slurm import PolicyContext, SlurmComputeResource, SlurmWorkerAllocationConfig, WorkerIntent
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.dagster.box_resource import jobs_of, resource_on
from dagster_slurm_tests.dagster.jobs import PAYLOADS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.fault("F21")]

WORKER = SlurmWorkerAllocationConfig(cpus_per_task=1)


@attrs.define
class Ran:
    """What came of a run."""

    metadata: dict[str, Any]
    log: list[str]
    session: Path
    heads: list[str]

    def times_run(self, number: int) -> int:
        return len((self.session / f"ran.{number}").read_text().splitlines())


def run_payload(
    box: SlurmBox, base: Path, workers: int, once_two_are_done: Callable[[PolicyContext, AllocationSession], bool]
) -> Ran:
    """Run the payload; when two tasks have their checkpoints something happens; the others go on once the head changed.

    ``once_two_are_done`` returns whether it has happened; until then it is called again at each tick.
    """
    heads: list[str] = []
    happened: list[bool] = []
    # The policy runs in a thread of its own, hence a connection of its own.
    outside = resource_on(box, base)

    def policy(context: PolicyContext) -> WorkerIntent:
        head = str(context.snapshot.head.slurm_job_id)
        if head not in heads:
            heads.append(head)
        directory = base / "sessions" / context.run_id
        done = all((directory / f"checkpoint.{number}").exists() for number in range(2))
        ready = [w for w in context.snapshot.workers(context.key) if w.ready]
        if len(heads) > 1:
            (directory / "go").touch()
        elif done and len(ready) == workers and not happened:
            happened.extend([True] * once_two_are_done(context, outside.attach_session(context.run_id)))
        return WorkerIntent(key=context.key, count=workers, config=WORKER)

    @dg.asset
    def checkpointed(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
        result = compute.run(context=context, payload=PAYLOADS / "checkpointed.py", policy=policy, interval_seconds=5)
        return result.materialize_result()

    with dg.DagsterInstance.ephemeral() as instance:
        compute = resource_on(box, base)
        result = dg.materialize([checkpointed], instance=instance, resources={"compute": compute}, raise_on_error=False)
        log = [entry.user_message or entry.message for entry in instance.all_logs(result.run_id)]
    outside.teardown_after_execution(dg.build_init_resource_context())
    assert result.success, log
    (event,) = result.get_asset_materialization_events()
    assert jobs_of(box, result.run_id) == {}
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    return Ran(metadata, log, base / "sessions" / result.run_id, heads)


def check_no_work_was_repeated(ran: Ran) -> None:
    assert ran.metadata["total"] == 0 + 1 + 4 + 9 + 16
    assert ran.metadata["reused"] >= 2
    assert ran.metadata["slurm/restarts_with_head"] == 1
    assert [ran.times_run(number) for number in range(2)] == [1, 1]
    attempts = [line for line in ran.log if line.startswith("attempt with")]
    assert attempts[0] == "attempt with 0 checkpoints"
    assert len(attempts) == 2


def test_a_killed_head_is_followed_by_an_elected_worker_and_no_checkpointed_task_runs_twice(
    box: SlurmBox, fresh_base: Path
) -> None:
    def kill_the_head(context: PolicyContext, session: AllocationSession) -> bool:
        box.run(["scancel", str(context.snapshot.head.slurm_job_id)])
        return True

    ran = run_payload(box, fresh_base, 2, kill_the_head)
    check_no_work_was_repeated(ran)
    assert any("is to be the next head" in line for line in ran.log), ran.log
    assert not any("A new head was submitted" in line for line in ran.log)


def test_a_promoted_successor_takes_over_and_no_checkpointed_task_runs_twice(box: SlurmBox, fresh_base: Path) -> None:
    def promote(context: PolicyContext, session: AllocationSession) -> bool:
        if context.snapshot.successor is None:
            submitted = session.submit_successor()
            assert len(submitted.submitted) == 1
            assert not session.submit_successor().submitted, "one is enough"
            return False
        if context.snapshot.successor.state != "RUNNING":
            return False
        assert session.promote_successor(timeout_seconds=0).standing == "claimed"
        return True

    ran = run_payload(box, fresh_base, 1, promote)
    check_no_work_was_repeated(ran)
    ledger = (ran.session / "allocation.json").read_text()
    assert '"successor": null' in ledger
