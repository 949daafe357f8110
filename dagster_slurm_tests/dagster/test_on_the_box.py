"""Payloads of assets and ops on a real Slurm with a real Ray: what the played session stands in for."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_slurm import (
    PolicyContext,
    SlurmComputeResource,
    SlurmWorkerAllocationConfig,
    WorkerIntent,
    snapshot_check,
    worker_policy,
)
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.dagster.box_resource import jobs_of, resource_on
from dagster_slurm_tests.dagster.conftest import Launch
from dagster_slurm_tests.dagster.jobs import PAYLOADS
from dagster_slurm_tests.integration.loopback import Relay
from dagster_slurm_tests.sessions import until

pytestmark = pytest.mark.integration
TICK_SECONDS = 5

#: Calls of the policy of ``elastic`` in the test's process.
ASKED: list[PolicyContext] = []


def grow(context: PolicyContext) -> WorkerIntent | None:
    """One worker more each time, two at most, as long as there is work."""
    ASKED.append(context)
    remaining = (context.work or {}).get("remaining")
    if remaining is None:
        return None
    if not any((seen.work or {}).get("remaining") is not None for seen in ASKED[:-1]):
        raise LookupError("the first time it does not know")
    live = [w for w in context.snapshot.workers(context.key) if w.committed and w.drain_deadline is None]
    soon = context.estimates([SlurmWorkerAllocationConfig(cpus_per_task=1)])[0].starts_within(60)
    wanted = min(2, remaining, len(live) + (1 if soon else 0))
    return WorkerIntent(key=context.key, count=wanted, config=SlurmWorkerAllocationConfig(cpus_per_task=1))


@dg.asset(metadata=worker_policy(grow))
def elastic(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
    """An asset that grows on Slurm."""
    result = compute.run(
        context=context,
        payload=PAYLOADS,
        argv=["{python}", "files/elastic.py"],
        interval_seconds=TICK_SECONDS,
        extras={"greeting": "hello"},
    )
    return result.materialize_result()


def test_an_asset_grows_reports_and_leaves_nothing(
    box: SlurmBox, fresh_base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ASKED.clear()
    with dg.DagsterInstance.ephemeral() as instance:
        compute = resource_on(box, fresh_base)
        check = snapshot_check(asset=elastic, name="head_runs", predicate=lambda seen: seen.head.state == "RUNNING")
        resources = {"compute": compute}
        result = dg.materialize([elastic, check], instance=instance, resources=resources, raise_on_error=False)
        log = [entry.user_message or entry.message for entry in instance.all_logs(result.run_id)]
    assert result.success, log
    (event,) = result.get_asset_materialization_events()
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    assert metadata["sum"] == 0 + 1 + 4 + 9 + 16 + 25
    assert metadata["greeting"] == "hello"
    assert metadata["slurm/workers_submitted"] in (1, 2)
    assert metadata["slurm/workers_submitted"] == metadata["slurm/workers_released"]
    assert metadata["slurm/most_workers_live"] >= 1
    ticks = [e.asset_observation_data.asset_observation for e in result.get_asset_observation_events()]
    sentences = [tick.description or "" for tick in ticks]
    # The tasks ran on the workers only. They may come and go between two ticks, so a table need not show them.
    submitted = [re.search(r"Submitted jobs? ([0-9, ]+)", sentence) for sentence in sentences]
    workers = {job for found in submitted if found is not None for job in found[1].split(", ")}
    assert set(metadata["jobs"]) <= workers
    assert all("slurm/allocations" in tick.metadata for tick in ticks if "slurm/live" in tick.metadata)
    assert "The policy failed: LookupError: the first time it does not know" in sentences
    assert any("Submitted job " in sentence for sentence in sentences)
    # Each once, in order, while it ran.
    assert [line for line in log if "of 6 tasks done" in line] == [f"{n} of 6 tasks done" for n in range(1, 7)]
    assert "payload of elastic\n" in capfd.readouterr().out
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed, evaluation.description
    # The session outlived the asset's step for its check, and ended with that.
    assert jobs_of(box, result.run_id) == {}


def test_steps_in_processes_share_a_head_and_a_failing_payload_fails_its_step(
    box: SlurmBox, fresh_base: Path, launch: Launch
) -> None:
    run = launch("failing_payload", "multiprocess")
    assert run.wait(240) is dg.DagsterRunStatus.FAILURE
    log = run.log()
    heads = {line.split("The head's job ")[1].split()[0] for line in log.splitlines() if "runs the payload" in line}
    assert len(heads) == 1, log
    assert "about to fail" in log
    assert "PayloadFailed: The payload exited with status 1.\nLast lines of its output:\n" in log
    assert "KeyError: 'no such column'" in log
    assert "Without any message its exit status alone tells how it went." in log
    assert jobs_of(box, run.run_id) == {}


@pytest.mark.parametrize("executor", ["in_process", "multiprocess"])
def test_a_cancelled_run_stops_its_payload(box: SlurmBox, fresh_base: Path, launch: Launch, executor: str) -> None:
    run = launch("sleeping_payload", executor)
    until(lambda: any(fresh_base.glob("sessions/*/payload.pid")), "the payload running", 120)
    pid = int((fresh_base / "sessions" / run.run_id / "payload.pid").read_text())
    assert is_alive(pid)
    run.cancel()
    assert run.wait() is dg.DagsterRunStatus.CANCELED, run.log()
    until(lambda: not is_alive(pid), "the end of the payload")
    assert jobs_of(box, run.run_id) == {}


def test_lost_connections_lose_and_repeat_nothing(
    box: SlurmBox, fresh_base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    relay = Relay(box.port)
    known = [line.split(" ", 1)[1] for line in Path(box.known_hosts).read_text().splitlines()]
    (tmp_path / "known_hosts").write_text("".join(f"[127.0.0.1]:{relay.port} {key}\n" for key in known))
    breaks: list[int] = []

    def break_again_and_again() -> None:
        until(lambda: any(fresh_base.glob("sessions/*/counting")), "the payload running", 120)
        while not any(fresh_base.glob("sessions/*/counted")):
            relay.break_all()
            breaks.append(relay.connections)
            time.sleep(1.5)

    @dg.op
    def count(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
        compute.run(context=context, payload=PAYLOADS / "counting.py", interval_seconds=TICK_SECONDS)

    @dg.job(
        resource_defs={
            "compute": resource_on(box, fresh_base, port=relay.port, known_hosts=str(tmp_path / "known_hosts"))
        }
    )
    def job() -> None:
        count()

    breaker = threading.Thread(target=break_again_and_again)
    breaker.start()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        breaker.join()
        said = [entry.user_message for entry in instance.all_logs(result.run_id) if "said " in entry.user_message]
    relay.close()
    assert result.success
    assert len(set(breaks)) >= 3
    assert said == [f"said {number}" for number in range(120)]
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("printed ")]
    assert printed == [f"printed {number}" for number in range(120)]
    assert jobs_of(box, result.run_id) == {}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"


def failing_run(
    box: SlurmBox, compute: SlurmComputeResource, payload: Path, meanwhile: Callable[[PolicyContext], None]
) -> tuple[str, str]:
    """Run a payload that fails, with something happening meanwhile; the run's id and the step's error."""

    def policy(context: PolicyContext) -> None:
        meanwhile(context)

    @dg.op
    def step(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
        compute.run(
            context=context, payload=payload, policy=policy, interval_seconds=TICK_SECONDS, restarts_with_head=0
        )

    @dg.job(resource_defs={"compute": compute})
    def job() -> None:
        step()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        (failure,) = result.get_step_failure_events()
    assert jobs_of(box, result.run_id) == {}
    return result.run_id, str(failure.step_failure_data.error_display_string)


def test_a_head_that_ends_under_its_payload_fails_the_step_with_its_state(box: SlurmBox, fresh_base: Path) -> None:
    def cancel_the_head(context: PolicyContext) -> None:
        if any(fresh_base.glob("sessions/*/payload.pid")):
            box.run(["scancel", str(context.snapshot.head.slurm_job_id)])

    _, error = failing_run(box, resource_on(box, fresh_base), PAYLOADS / "sleep.py", cancel_the_head)
    assert "PayloadEndedWithHead" in error
    assert "CANCELLED" in error or "COMPLETING" in error
    assert "sleeping" in error
    assert "Last lines of the log of job" in error


def test_a_head_that_cannot_start_fails_the_step_with_its_log(box: SlurmBox, fresh_base: Path) -> None:
    # Only inside of a job: on the login node the same lines are fine.
    setup = '[ -z "$SLURM_JOB_ID" ] || { echo "no such module: cuda" >&2; exit 9; }'
    compute = resource_on(box, fresh_base, allocation_setup=setup)
    _, error = failing_run(box, compute, PAYLOADS / "plain.py", lambda _: None)
    assert "before it took the payload" in error
    assert "FAILED" in error
    assert "no such module: cuda" in error
