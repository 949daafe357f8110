"""The sensor that asks the policies of runs in progress, on played sessions and a real instance of Dagster."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import dagster as dg
import pytest
from dagster._core.execution.plan.objects import StepFailureData, StepRetryData, StepSuccessData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin
from dagster._utils.error import SerializableErrorInfo

from dagster_slurm import ConfigurationError, PolicyContext, WorkerIntent, worker_policy, worker_policy_sensor
from dagster_slurm.allocations.reports import DriverMark
from dagster_slurm.errors import HostUnreachable, LockTimeout, SessionNotFound
from dagster_slurm.policy import Policy
from dagster_slurm.run_facts import session_tag
from dagster_slurm_tests.dagster.fakes import EPOCH, FakeSession


class PlayedCompute:
    """Stands in for the resource: the session of each run, or why there is none."""

    session_name: str | None = None

    def __init__(self) -> None:
        self.sessions: dict[str, FakeSession | Exception] = {}
        self.attached: list[str] = []

    def attach_session(self, run: dg.DagsterRun, *, check: bool) -> FakeSession:
        assert not check, "watching looks first of all"
        self.attached.append(run.run_id)
        found = self.sessions[run.run_id]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def definitions(policies: dict[str, Policy | None]) -> dg.Definitions:
    def make(name: str, policy: Policy | None) -> dg.AssetsDefinition:
        @dg.asset(name=name, metadata=worker_policy(policy) if policy else None)
        def asset() -> None:
            raise AssertionError("the sensor runs no asset")

        return asset

    return dg.Definitions(assets=[make(name, policy) for name, policy in policies.items()])


class World:
    """A code location, its runs, and the sensor's ticks."""

    def __init__(self, instance: dg.DagsterInstance, policies: dict[str, Policy | None], **options: Any) -> None:
        self.instance = instance
        self.defs = definitions(policies)
        self.compute = PlayedCompute()
        self.sensor = worker_policy_sensor(**options)
        self.cursor: str | None = None
        self.location: RegisteredCodeLocationOrigin | None = None

    def start(self, *assets: str, session: FakeSession | Exception | None = None, tagged: bool = True) -> str:
        """A run in progress whose steps run."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        run = self.instance.create_run_for_job(
            job.get_subset(asset_selection={dg.AssetKey(name) for name in assets}) if assets else job,
            status=dg.DagsterRunStatus.STARTED,
            tags={session_tag(None): "x"} if tagged else None,
        )
        for name in assets:
            self.say(run.run_id, name, "STEP_START")
        self.compute.sessions[run.run_id] = FakeSession() if session is None else session
        return run.run_id

    def say(self, run_id: str, step: str, event: str) -> None:
        data = {
            "STEP_FAILURE": StepFailureData(error=None, user_failure_data=None),
            "STEP_SUCCESS": StepSuccessData(duration_ms=1.0),
            "STEP_UP_FOR_RETRY": StepRetryData(error=SerializableErrorInfo("", [], None), seconds_to_wait=0),
        }
        made = dg.DagsterEvent(
            event_type_value=event, job_name="__ASSET_JOB", step_key=step, event_specific_data=data.get(event)
        )
        self.instance.report_dagster_event(made, run_id)

    def session(self, run_id: str) -> FakeSession:
        found = self.compute.sessions[run_id]
        assert isinstance(found, FakeSession)
        return found

    def tick(self) -> dg.SensorResult:
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            definitions=self.defs,
            resources={"compute": self.compute},
            repository_name="__repository__",
        )
        context._code_location_origin = self.location
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return result

    def log(self, run_id: str) -> list[str]:
        entries = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        return [entry.dagster_event.message or "" for entry in entries if entry.dagster_event is not None]


def wants(count: int) -> Callable[[PolicyContext], WorkerIntent]:
    def policy(context: PolicyContext) -> WorkerIntent:
        return WorkerIntent(key=context.key, count=count)

    return policy


def driven_by(key: str, age_seconds: int, **changes: Any) -> DriverMark:
    return DriverMark(
        **{"key": key, "payload_id": "1-a", "interval_seconds": 30.0, "age_seconds": age_seconds, **changes}
    )


def test_a_policy_whose_step_does_not_ask_it_is_asked_and_recorded(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(2)})
    run = world.start("scores")
    result = world.tick()
    assert len(world.session(run).workers) == 2
    sentence = "The policy wants 2 worker allocations of 'scores'. Submitted jobs 100, 101."
    (event,) = result.asset_events
    assert isinstance(event, dg.AssetObservation)
    assert (event.asset_key, event.description) == (dg.AssetKey("scores"), sentence)
    assert event.metadata["slurm/wanted"].value == 2
    assert event.metadata["slurm/run"].value == run
    assert world.log(run) == [sentence]
    assert result.skip_reason is not None
    assert sentence in str(result.skip_reason.skip_message)


def test_ticks_of_a_daemon_never_double(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(2)})
    run = world.start("scores")
    events = sum(len(world.tick().asset_events) for _ in range(5))
    assert len(world.session(run).workers) == 2
    # First what was done, then what is so; after that nothing is new.
    assert events == 2
    assert len(world.log(run)) == 2


def test_a_step_that_drives_is_left_alone_until_its_mark_is_old(instance: dg.DagsterInstance) -> None:
    asked: list[PolicyContext] = []

    def policy(context: PolicyContext) -> WorkerIntent:
        asked.append(context)
        return WorkerIntent(key=context.key, count=1)

    world = World(instance, {"scores": policy})
    run = world.start("scores")
    session = world.session(run)
    session.work = {"remaining": 9}
    session.drivers = (driven_by("scores", 60, work={"remaining": 4}),)
    released = session.add_worker("scores")
    session.workers[released] = attrs.evolve(session.workers[released], drain_deadline=EPOCH + 5)
    assert world.tick().asset_events == []
    assert asked == []
    # Its deadlines are enforced all the same.
    (call,) = session.called("reconcile_workers")
    assert (call["intents"], call["max_submissions"]) == ((), 0)
    assert world.log(run) == ["The step of scores asks its policy itself; only observed."]
    session.drivers = (driven_by("scores", 61, work={"remaining": 4}),)
    world.tick()
    assert [context.work for context in asked] == [{"remaining": 4}]
    assert "Submitted job 101" in world.log(run)[-1]


def test_a_head_that_ended_is_followed_where_an_allocation_could_lead(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(1)})
    run = world.start("scores")
    session = world.session(run)
    session.head = attrs.evolve(session.head, state="TIMEOUT", committed=False)
    world.tick()
    assert session.called("ensure_head") == [], "nobody could lead, and no step asks for another head"
    session.heads = [attrs.evolve(session.workers["100"], role="head")]
    session.fail["ensure_head"] = [HostUnreachable("gone")]
    world.tick()
    assert world.log(run)[-1].endswith("The head could not be seen to: gone")
    world.tick()
    assert world.log(run)[-1].endswith("The head is job 100.")
    world.tick()
    assert len(session.called("ensure_head")) == 2


def test_workers_that_a_step_left_behind_are_released(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(3), "other": None})
    run = world.start("scores", "other")
    session = world.session(run)
    session.add_worker("scores")
    session.add_worker("by hand")
    world.say(run, "scores", "STEP_FAILURE")
    world.tick()
    assert [worker.drain_deadline is None for worker in session.workers.values()] == [False, True]
    assert world.log(run)[0] == "The step of scores has ended and left workers. Released job 100."
    world.tick()
    assert all(call["max_submissions"] == 0 for call in session.called("reconcile_workers")[1:])


@pytest.mark.parametrize("event", ["STEP_UP_FOR_RETRY", "STEP_SUCCESS"])
def test_a_step_that_does_not_run_is_not_spoken_for(instance: dg.DagsterInstance, event: str) -> None:
    world = World(instance, {"scores": wants(3)})
    run = world.start("scores")
    world.say(run, "scores", event)
    world.tick()
    assert world.session(run).workers == {}


def test_runs_without_a_tag_or_not_in_progress_are_left_alone(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(1)})
    world.start("scores", tagged=False)
    ended = world.start("scores")
    instance.report_run_canceled(instance.get_run_by_id(ended))  # type: ignore[arg-type]
    result = world.tick()
    assert world.compute.attached == []
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "No run in progress has a Slurm session."


@pytest.mark.parametrize(("location", "ours"), [("here", True), ("elsewhere", False)])
def test_a_run_of_another_code_location_is_not_ours(instance: dg.DagsterInstance, location: str, ours: bool) -> None:
    world = World(instance, {"scores": wants(1)})
    run = world.start("scores")
    instance.add_run_tags(run, {".dagster/repository": f"__repository__@{location}"})
    world.location = RegisteredCodeLocationOrigin("here")
    world.tick()
    assert world.compute.attached == ([run] if ours else [])


def test_one_session_s_failure_does_not_stop_the_others(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(1)})
    broken = world.start("scores", session=LockTimeout("The session lock stayed taken."))
    gone = world.start("scores", session=SessionNotFound("There is no session directory."))
    odd = world.start("scores", session=ZeroDivisionError("nothing to do with Slurm"))
    fine = world.start("scores")
    for _ in range(3):
        world.tick()
    assert len(world.session(fine).workers) == 1
    # Each failure is in its run's log, once.
    assert world.log(broken) == ["The session could not be looked at. The session lock stayed taken."]
    assert world.log(gone) == ["There is no session to look at. There is no session directory."]
    assert world.log(odd) == ["Looking at the session failed: ZeroDivisionError: nothing to do with Slurm"]


def test_a_login_node_that_cannot_be_reached_is_asked_once_a_tick(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(1)})
    runs = {world.start("scores", session=HostUnreachable("No connection to login:22.")) for _ in range(3)}
    for _ in range(3):
        world.tick()
    assert len(world.compute.attached) == 3
    assert set(world.compute.attached) == runs
    assert "2 left for the next tick" in str(world.tick().skip_reason)


def test_a_tick_ends_in_time_and_the_next_one_carries_on(instance: dg.DagsterInstance) -> None:
    go = threading.Event()
    world = World(instance, {"scores": wants(1)}, tick_seconds=0.2, policy_timeout_seconds=0.1)
    runs = sorted(world.start("scores") for _ in range(3))
    hanging = world.session(runs[0])
    hanging.inspect = lambda: go.wait(60)  # type: ignore[method-assign, assignment, return-value]
    try:
        world.tick()
        assert world.compute.attached == runs[:1]
        assert world.log(runs[0]) == ["The session could not be looked at: not finished within 0 s."]
        world.sensor = worker_policy_sensor(tick_seconds=5, policy_timeout_seconds=1)
        world.tick()
        assert world.compute.attached[1:3] == runs[1:]
        assert all(len(world.session(run).workers) == 1 for run in runs[1:])
    finally:
        go.set()


def test_a_policy_that_blocks_is_not_waited_for(instance: dg.DagsterInstance) -> None:
    go = threading.Event()

    def blocks(context: PolicyContext) -> WorkerIntent:
        go.wait(60)
        return WorkerIntent(key=context.key, count=5)

    world = World(instance, {"scores": blocks, "other": wants(1)}, policy_timeout_seconds=0.1)
    run = world.start("scores", "other")
    try:
        world.tick()
    finally:
        go.set()
    assert "The policy did not answer within 0.1 s; a late answer is ignored." in world.log(run)
    assert [worker.intent for worker in world.session(run).workers.values()] == ["other"]


def test_a_policy_that_fails_or_asks_for_nonsense_is_recorded(instance: dg.DagsterInstance) -> None:
    def fails(_: PolicyContext) -> None:
        raise KeyError("gpu")

    world = World(instance, {"scores": fails})
    run = world.start("scores")
    result = world.tick()
    assert world.log(run) == ["The policy failed: KeyError: 'gpu'"]
    assert "in fails" in str(result.asset_events[0].metadata["slurm/policy_error"].value)


def test_two_policies_on_one_key_are_both_not_followed(instance: dg.DagsterInstance) -> None:
    def shared(_: PolicyContext) -> WorkerIntent:
        return WorkerIntent(key="shared", count=1)

    world = World(instance, {"one": shared, "two": shared, "three": wants(1)})
    run = world.start("one", "two", "three")
    world.tick()
    assert [worker.intent for worker in world.session(run).workers.values()] == ["three"]
    assert len([line for line in world.log(run) if "also sets the count of 'shared'; none was followed" in line]) == 2


def test_a_cursor_that_is_damaged_is_a_beginning(instance: dg.DagsterInstance) -> None:
    world = World(instance, {"scores": wants(1)})
    run = world.start("scores")
    for text in ("", "{", "[]", '{"said": 3}', '{"said": {"x": 1}}'):
        world.cursor = text
        world.tick()
    assert len(world.session(run).workers) == 1
    assert json.loads(world.cursor or "")["after"] == run


@pytest.mark.parametrize(
    "wrong", [{"minimum_interval_seconds": 1}, {"tick_seconds": 55}, {"tick_seconds": 0}, {"policy_timeout_seconds": 0}]
)
def test_a_pace_that_cannot_be_kept_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        worker_policy_sensor(**wrong)


@pytest.mark.parametrize("name", [None, "two", "x" * 64])
def test_tags_stay_within_dagster_s_limits(name: str | None) -> None:
    @dg.job(tags={session_tag(name): "run"})
    def job() -> None: ...

    assert job.tags == {session_tag(name): "run"}
