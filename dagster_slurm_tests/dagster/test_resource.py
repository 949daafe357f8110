"""The resource in Dagster, with a played session in place of the cluster."""

# Dagster reads the annotation of an op's context as it is written, hence no postponed annotations here.

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import dagster as dg
import pytest

from dagster_slurm import (
    ConfigurationError,
    EndResult,
    PolicyContext,
    SlurmComputeResource,
    SlurmHeadOptions,
    SlurmLimits,
    SlurmQueueOptions,
    SlurmWorkerOptions,
    WorkerIntent,
    worker_policy,
)
from dagster_slurm.errors import HostUnreachable, RemoteTimeout, SessionNotFound
from dagster_slurm.resource_options import shapes_of
from dagster_slurm.run_loop import Pace
from dagster_slurm.session.creation import SessionSpec
from dagster_slurm_tests.dagster.fakes import (
    CLOSED,
    OPENED,
    FakeSession,
    Step,
    failed,
    message,
    running,
    says,
    succeeded,
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "main.py"
    path.write_text("print('hello')\n")
    return path


SCORE = {"score": {"raw_value": 3, "type": "int"}}


@attrs.define
class Cluster:
    """Stands in for a cluster: what sessions were asked for, and the one that is given out.

    Attributes:
        ran: Whether any script has run over there.
    """

    session: FakeSession
    created: list[SessionSpec] = attrs.field(factory=list)
    attached: list[SessionSpec] = attrs.field(factory=list)
    shells: int = 0
    closed: int = 0
    error: BaseException | None = None
    ran: int = 1


class FakeShell:
    """A connection that is counted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.shells += 1

    @property
    def round_trips(self) -> int:
        return self._cluster.ran

    def close(self) -> None:
        self._cluster.closed += 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(FakeSession())

    def create(shell: object, spec: SessionSpec) -> FakeSession:
        made.created.append(spec)
        if made.error is not None:
            raise made.error
        return made.session

    def attach(shell: object, spec: SessionSpec, *, check: bool = True) -> FakeSession:
        made.attached.append(spec)
        return made.session

    monkeypatch.setattr("dagster_slurm.process_sessions.create_or_attach", create)
    monkeypatch.setattr("dagster_slurm.process_sessions.attach", attach)
    monkeypatch.setattr("dagster_slurm.process_sessions.Place.shell", lambda place: FakeShell(made))
    monkeypatch.setattr("dagster_slurm.run_loop.Pace", lambda: made.session.pace())
    return made


def resource(**fields: Any) -> SlurmComputeResource:
    return SlurmComputeResource(**{"host": "login", "user": "me", "remote_base": "/base", **fields})


def play(cluster: Cluster, *script: Step) -> None:
    """What the payload does."""
    cluster.session = FakeSession(*script)


def materialize(
    instance: dg.DagsterInstance, asset: dg.AssetsDefinition, compute: SlurmComputeResource | None = None
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset], instance=instance, resources={"compute": compute or resource()}, raise_on_error=False
    )


def one_worker(context: PolicyContext) -> WorkerIntent:
    """One worker, always."""
    return WorkerIntent(key=context.key, count=1)


def elastic_asset(payload: Path, **arguments: Any) -> dg.AssetsDefinition:
    @dg.asset(metadata=worker_policy(one_worker), key_prefix="group")
    def elastic(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
        return compute.run(context=context, payload=payload, **arguments).materialize_result()

    return elastic


def log_of(instance: dg.DagsterInstance, run_id: str) -> str:
    return "\n".join(entry.message for entry in instance.all_logs(run_id))


# -- running ------------------------------------------------------------------------------------------


def test_the_materialization_has_what_the_payload_reported_and_the_summary(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reported = message(
        "report_asset_materialization",
        asset_key="group/elastic",
        metadata=SCORE,
        data_version=None,
    )
    play(cluster, running, says(OPENED, reported, CLOSED), succeeded)
    cluster.session.log = b"hello from the cluster\n"
    result = materialize(instance, elastic_asset(payload))
    assert result.success
    (event,) = result.get_asset_materialization_events()
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    assert metadata["score"] == 3
    assert metadata["slurm/workers_submitted"] == 1
    assert metadata["slurm/workers_released"] == 1
    assert metadata["slurm/ticks"] >= 2
    assert "hello from the cluster\n" in capfd.readouterr().out


def test_ticks_are_observations_of_the_asset(cluster: Cluster, instance: dg.DagsterInstance, payload: Path) -> None:
    play(cluster, running, says(OPENED, CLOSED), succeeded)
    result = materialize(instance, elastic_asset(payload))
    seen = [e.asset_observation_data.asset_observation for e in result.get_asset_observation_events()]
    assert {o.asset_key for o in seen} == {dg.AssetKey(["group", "elastic"])}
    assert seen[0].description == "The policy wants 1 worker allocation of 'group/elastic'. Submitted job 100."
    assert isinstance(seen[0].metadata["slurm/allocations"], dg.TableMetadataValue)


def test_in_an_op_ticks_are_events_of_the_run(cluster: Cluster, instance: dg.DagsterInstance, payload: Path) -> None:
    @dg.op
    def plain(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
        compute.run(context=context, payload=payload, policy=one_worker)

    @dg.job(resource_defs={"compute": resource()})
    def job() -> None:
        plain()

    play(cluster, running, succeeded)
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert result.success
    events = [
        entry.dagster_event
        for entry in instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if entry.dagster_event is not None and "The policy wants" in (entry.dagster_event.message or "")
    ]
    assert events[0].message == "The policy wants 1 worker allocation of 'plain'. Submitted job 100."
    assert events[0].step_key == "plain"
    assert "slurm/allocations" in events[0].engine_event_data.metadata


def test_a_payload_gets_its_environment_and_where_to_report(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path
) -> None:
    play(cluster, running, succeeded)
    materialize(instance, elastic_asset(payload, argv=["{python}", "files/main.py", "-v"], env={"COLOUR": "blue"}))
    (start,) = cluster.session.called("start_payload")
    assert start["argv"] == ("{python}", "files/main.py", "-v")
    assert start["env"]["COLOUR"] == "blue"
    assert {"DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"} <= set(start["env"])


def test_a_policy_given_to_run_goes_before_the_one_on_the_asset(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path
) -> None:
    play(cluster, running, succeeded)
    materialize(instance, elastic_asset(payload, policy=lambda context: WorkerIntent(key="mine", count=2)))
    assert cluster.session.called("reconcile_workers")[0]["intents"] == (WorkerIntent(key="mine", count=2),)


def test_a_failing_payload_fails_the_step_with_its_last_lines(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path
) -> None:
    play(cluster, running, failed)
    cluster.session.log = b"ValueError: no data\n"
    result = materialize(instance, elastic_asset(payload))
    assert not result.success
    (failure,) = result.get_step_failure_events()
    shown = failure.step_failure_data.error_display_string
    assert "PayloadFailed: The payload exited with status 3.\nLast lines of its output:\nValueError: no data" in shown


def test_Q_7_an_asset_whose_payload_sent_nothing_succeeds_and_says_so(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path
) -> None:
    play(cluster, running, succeeded)
    result = materialize(instance, elastic_asset(payload))
    assert result.success
    log = log_of(instance, result.run_id)
    assert "did not receive any messages from external process" in log
    assert "Without any message its exit status alone tells how it went." in log


def test_a_retry_of_the_op_uses_the_same_session_and_another_payload(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path
) -> None:
    @dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
    def flaky(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
        compute.run(context=context, payload=payload)

    @dg.job(resource_defs={"compute": resource()})
    def job() -> None:
        flaky()

    def again(session: FakeSession) -> None:
        session.state, session.exit_code, session.message = "waiting", None, None

    play(cluster, running, failed, again, running, succeeded)
    assert job.execute_in_process(instance=instance).success
    assert len(cluster.created) == 1
    first, second = cluster.session.called("start_payload")
    assert first["payload_id"] != second["payload_id"]
    assert len(cluster.session.called("end")) == 1


# -- life ---------------------------------------------------------------------------------------------


def session_job(*names: str, fail: str | None = None, in_a_row: bool = True) -> dg.JobDefinition:
    """Steps that get the session, one after the other or side by side."""

    def step(name: str) -> dg.OpDefinition:
        @dg.op(name=name, ins={"start": dg.In(dg.Nothing)})
        def use(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
            compute.get_run_allocation_session(context)
            if name == fail:
                raise RuntimeError("on purpose")

        return use

    @dg.job(resource_defs={"compute": resource()})
    def job() -> None:
        before: Any = None
        for name in names:
            before = step(name)(start=before) if before is not None and in_a_row else step(name)()

    return job


def test_Q_6_the_steps_of_a_process_share_one_session_and_it_ends_with_the_run(
    cluster: Cluster, instance: dg.DagsterInstance
) -> None:
    result = session_job("a", "b", "c").execute_in_process(instance=instance)
    assert len(cluster.created) == 1
    assert cluster.created[0].settings.session_id == result.run_id
    assert len(cluster.session.called("end")) == 1
    assert (cluster.shells, cluster.closed) == (1, 1)
    assert "has ended; no job of it is left" in log_of(instance, result.run_id)


def test_a_failed_run_ends_its_session(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    session_job("a", "b", "c", fail="b").execute_in_process(instance=instance, raise_on_error=False)
    assert len(cluster.session.called("end")) == 1


def test_a_run_that_never_asked_for_its_session_connects_to_nothing(
    cluster: Cluster, instance: dg.DagsterInstance
) -> None:
    @dg.asset
    def idle(compute: SlurmComputeResource) -> None: ...

    assert materialize(instance, idle, resource(host="")).success
    assert (cluster.shells, cluster.created, cluster.attached) == (0, [], [])


def test_two_resources_of_one_run_have_sessions_of_their_own(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    @dg.op(required_resource_keys={"first", "second"})
    def use(context: dg.OpExecutionContext) -> None:
        context.resources.first.get_run_allocation_session(context)
        context.resources.second.get_run_allocation_session(context)

    @dg.job(resource_defs={"first": resource(), "second": resource(session_name="gpu")})
    def job() -> None:
        use()

    run_id = job.execute_in_process(instance=instance).run_id
    assert [spec.settings.session_id for spec in cluster.created] == [run_id, f"{run_id}-gpu"]
    assert len(cluster.session.called("end")) == 2


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            lambda s: setattr(s, "end_result", EndResult(complete=False, live=("7", "8"), unresolved=1)),
            "These jobs may still run: 7, 8",
        ),
        (lambda s: s.fail.update(end=[HostUnreachable("No connection.")]), "These jobs may still run: 1"),
        (lambda s: s.fail.update(end=[SessionNotFound("There is none.")]), "its directory is gone"),
    ],
    ids=["jobs left", "unreachable", "directory gone"],
)
def test_Q_5_an_end_that_fails_is_logged_with_the_surviving_jobs(
    cluster: Cluster, instance: dg.DagsterInstance, prepare: Callable[[FakeSession], None], said: str
) -> None:
    prepare(cluster.session)
    result = session_job("a").execute_in_process(instance=instance)
    log = log_of(instance, result.run_id)
    assert result.success
    assert said in log
    assert "scancel --name=dagster-run" in log


class Outer(dg.ConfigurableResource[Any]):
    """A user's resource that wraps the compute resource, and looks at it in its own teardown."""

    compute: SlurmComputeResource

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        assert context.log is not None
        context.log.info("outer teardown")


# Dagster 1.13 calls its own deprecated property when it sets up a nested resource.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated")
def test_Q_5_a_nested_resource_is_torn_down_once_after_the_outer_one(
    cluster: Cluster, instance: dg.DagsterInstance
) -> None:
    @dg.op
    def use(context: dg.OpExecutionContext, outer: Outer) -> None:
        outer.compute.get_run_allocation_session(context)

    @dg.job(resource_defs={"outer": Outer(compute=resource())})
    def job() -> None:
        use()

    result = job.execute_in_process(instance=instance)
    log = log_of(instance, result.run_id)
    assert log.index("outer teardown") < log.index("has ended; no job of it is left")
    assert len(cluster.session.called("end")) == 1
    assert cluster.closed == 1


def test_Q_1_an_interrupt_while_the_session_is_created_ends_it(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    cluster.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        session_job("a", "b", in_a_row=False).execute_in_process(instance=instance)
    assert len(cluster.created) == 1
    # It may exist or not: ended without a look whether it does.
    assert len(cluster.session.called("end")) == 1


def test_Q_1_an_interrupt_under_a_payload_ends_the_session_even_if_steps_are_left(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path
) -> None:
    @dg.op
    def run(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
        compute.run(context=context, payload=payload)

    @dg.job(resource_defs={"compute": resource()})
    def job() -> None:
        run.alias("first")()
        run.alias("second")()

    def stop(session: FakeSession) -> None:
        session.fail["poll_payload"] = [KeyboardInterrupt()]

    play(cluster, running, stop)
    with pytest.raises(KeyboardInterrupt):
        job.execute_in_process(instance=instance)
    assert len(cluster.session.called("start_payload")) == 1
    assert [call.name for call in cluster.session.calls][-2:] == ["cancel_payload", "end"]


def test_a_creation_whose_outcome_is_unknown_is_ended(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    cluster.error = RemoteTimeout("no answer")
    session_job("a").execute_in_process(instance=instance, raise_on_error=False)
    assert len(cluster.session.called("end")) == 1


def test_a_creation_that_never_reached_the_cluster_leaves_nothing_to_end(
    cluster: Cluster, instance: dg.DagsterInstance
) -> None:
    cluster.error, cluster.ran = HostUnreachable("No connection."), 0
    session_job("a").execute_in_process(instance=instance, raise_on_error=False)
    assert cluster.session.called("end") == []
    assert cluster.closed == 1


def test_attaching_submits_nothing_and_ends_nothing(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    compute = resource()
    assert compute.attach_session("other-run") is cluster.session
    assert cluster.created == []
    assert cluster.attached[0].settings.session_id == "other-run"


# -- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"host": ""}, "host"),
        ({"host": "  "}, "host"),
        ({"user": ""}, "user"),
        ({"port": 0}, "port"),
        ({"port": 70_000}, "port"),
        ({"key_file": "/no/such/key"}, "key_file"),
        ({"known_hosts": "/no/such/file"}, "known_hosts"),
        ({"remote_base": ""}, "remote_base"),
        ({"remote_base": "relative/path"}, "remote_base"),
        ({"ray_python": " "}, "ray_python"),
        ({"rejoin_timeout_seconds": 0}, "rejoin_timeout_seconds"),
        ({"orphan_timeout_seconds": -1}, "orphan_timeout_seconds"),
        ({"limits": SlurmLimits(submissions_per_call=0)}, "limits.submissions_per_call"),
        ({"limits": SlurmLimits(live_per_session=-3)}, "limits.live_per_session"),
        ({"queue": SlurmQueueOptions(time_limit="soon")}, "queue.time_limit"),
        ({"queue": SlurmQueueOptions(mem="8G", mem_per_cpu="1G")}, "queue.mem_per_cpu"),
        ({"head": SlurmHeadOptions(cpus_per_task=0)}, "head.cpus_per_task"),
        ({"head": SlurmHeadOptions(extra_options=["--output=x"])}, "head.extra_options"),
        ({"worker": SlurmWorkerOptions(gpus_per_node=-1)}, "worker.gpus_per_node"),
        ({"worker": SlurmWorkerOptions(gpu_type="a100")}, "worker.gpus_per_node"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_before_anything_is_sent(
    fields: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_slurm.remote.ssh.SshShell.run", lambda *_, **__: pytest.fail("something was sent"))
    with pytest.raises(ConfigurationError) as caught:
        resource(**fields).attach_session("run")
    assert caught.value.field == f"SlurmComputeResource.{field}"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"payload": "/no/such/payload.py"}, "payload"),
        ({"interval_seconds": 4.9}, "interval_seconds"),
        ({"interval_seconds": float("nan")}, "interval_seconds"),
        ({"policy_timeout_seconds": 0}, "policy_timeout_seconds"),
        ({"policy": "grow"}, "policy"),
        ({"payload": "/"}, "argv"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_run_is_named_before_a_session_is_made(
    cluster: Cluster, instance: dg.DagsterInstance, payload: Path, arguments: dict[str, Any], field: str
) -> None:
    @dg.asset
    def elastic(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
        with pytest.raises(ConfigurationError) as caught:
            compute.run(context=context, **{"payload": payload, **arguments})
        assert caught.value.field == field
        return dg.MaterializeResult()

    assert dg.materialize([elastic], instance=instance, resources={"compute": resource()}).success
    assert (cluster.shells, cluster.created) == (0, [])


def test_the_local_way_needs_no_host_and_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = SlurmComputeResource(local=True, remote_base="/no/such/base")
    with pytest.raises(SessionNotFound, match="no session directory /no/such/base/sessions/run on local"):
        compute.attach_session("run")


def test_values_come_from_the_environment_and_shapes_inherit(
    cluster: Cluster, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.asset
    def use(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> None:
        compute.get_run_allocation_session(context)
        assert compute.port == 2222

    for name, value in {"A_HOST": "login", "A_PORT": "2222", "A_PART": "gpu-a", "A_BASE": "/base"}.items():
        monkeypatch.setenv(name, value)
    compute = SlurmComputeResource(
        host=dg.EnvVar("A_HOST"),
        port=dg.EnvVar.int("A_PORT"),
        user="me",
        remote_base=dg.EnvVar("A_BASE"),
        queue=SlurmQueueOptions(partition=dg.EnvVar("A_PART"), account="research", time_limit="01:00:00"),
        worker=SlurmWorkerOptions(gpus_per_node=2, gpu_type="a100", account=""),
    )
    assert materialize(instance, use, compute).success
    (spec,) = cluster.created
    assert (spec.head.partition, spec.head.account, spec.head.head_only) == ("gpu-a", "research", True)
    assert (spec.worker.partition, spec.worker.account) == ("gpu-a", None)
    assert spec.worker.gpus_per_node == "a100:2"
    assert spec.worker.time_limit_seconds == 3600
    assert spec.remote_base == "/base"


def test_options_that_say_nothing_mention_nothing_to_slurm() -> None:
    shapes = shapes_of(SlurmQueueOptions(), SlurmHeadOptions(), SlurmWorkerOptions())
    assert shapes.worker.to_json() == {}
    assert shapes.head.to_json() == {"head_only": True}


def test_the_pace_of_the_loop_is_real_time_by_default() -> None:
    assert Pace().clock() > 0


def test_extra_options_of_the_queue_hold_for_head_and_workers_unless_they_say_otherwise() -> None:
    queue = SlurmQueueOptions(extra_options=["--licenses=a:1"])
    shapes = shapes_of(queue, SlurmHeadOptions(extra_options=[]), SlurmWorkerOptions())
    assert shapes.head.extra_options == ()
    assert shapes.worker.extra_options == ("--licenses=a:1",)
