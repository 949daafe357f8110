"""The sensor that ends sessions of runs that are over; played sessions, and a real instance of Dagster."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

from collections.abc import Iterator

import dagster as dg
import pytest

from dagster_slurm import ConfigurationError, EndResult, FoundSession, session_cleanup_sensor
from dagster_slurm.errors import HostUnreachable, LedgerDamaged

DAY = 86_400


class PlayedCompute:
    """Stands in for the resource: which sessions there are, and what becomes of an end."""

    def __init__(self) -> None:
        self.found: dict[str, FoundSession] = {}
        self.ends: dict[str, EndResult | Exception] = {}
        self.calls: list[str] = []

    def find_sessions(self) -> tuple[FoundSession, ...]:
        return tuple(self.found.values())

    def end_session(self, session_id: str, *, timeout_seconds: float) -> EndResult:
        assert 0 < timeout_seconds <= 10
        self.calls.append(f"end {session_id}")
        result = self.ends.get(session_id, EndResult(complete=True))
        if isinstance(result, Exception):
            raise result
        if result.complete:
            self.found[session_id] = FoundSession(session_id=session_id, closing=True, ended_seconds_ago=0)
        return result

    def remove_session(self, session_id: str) -> None:
        self.calls.append(f"remove {session_id}")
        del self.found[session_id]


class World:
    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.compute = PlayedCompute()
        self.sensor = session_cleanup_sensor()
        self.cursor: str | None = None

    def run(self, status: dg.DagsterRunStatus, *suffixes: str) -> str:
        """A run with sessions of these names; without any it has the one without a name."""

        @dg.job
        def job() -> None: ...

        run = self.instance.create_run_for_job(job, status=status)
        for suffix in suffixes or ("",):
            self.directory(run.run_id + suffix)
        return run.run_id

    def directory(self, session_id: str, ended_seconds_ago: int | None = None) -> None:
        self.compute.found[session_id] = FoundSession(
            session_id=session_id, closing=ended_seconds_ago is not None, ended_seconds_ago=ended_seconds_ago
        )

    def tick(self) -> str:
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"compute": self.compute}
        )
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        assert result.skip_reason is not None
        self.cursor = result.cursor
        return result.skip_reason.skip_message or ""

    def log(self, run_id: str) -> list[str]:
        entries = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        return [entry.dagster_event.message or "" for entry in entries if entry.dagster_event is not None]


@pytest.fixture
def world() -> Iterator[World]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(instance)


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE", "CANCELED", "CANCELING"])
def test_the_session_of_a_run_that_is_over_is_ended_once(world: World, status: str) -> None:
    run = world.run(dg.DagsterRunStatus[status])
    world.tick()
    assert world.tick() == "1 session(s); nothing to end, nothing to remove."
    assert world.compute.calls == [f"end {run}"]
    assert world.log(run) == ["The Slurm session has ended; no job of it is left."]


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED"])
def test_the_session_of_a_run_in_progress_stays(world: World, status: str) -> None:
    world.run(dg.DagsterRunStatus[status])
    world.tick()
    assert world.compute.calls == []


def test_two_resources_of_one_run_have_a_session_each(world: World) -> None:
    run = world.run(dg.DagsterRunStatus.FAILURE, "", "-second")
    world.tick()
    assert world.compute.calls == [f"end {run}", f"end {run}-second"]


def test_a_run_that_is_not_known_here_is_named_and_left_alone(world: World) -> None:
    stranger = "6d0cf23f-0000-0000-0000-000000000000"
    world.directory(stranger)
    world.directory("7d0cf23f-0000-0000-0000-000000000000", ended_seconds_ago=99 * DAY)
    assert world.tick() == f"Runs not known here, left alone: {stranger}"
    assert world.compute.calls == []


def test_an_end_that_is_not_complete_is_tried_again_and_noted_once(world: World) -> None:
    run = world.run(dg.DagsterRunStatus.SUCCESS)
    world.compute.ends[run] = EndResult(complete=False, live=("12", "13"))
    for _ in range(3):
        assert "still there: 12, 13" in world.tick()
    assert world.log(run) == ["The Slurm session is ending; still there: 12, 13."]
    world.compute.ends[run] = EndResult(complete=True)
    world.tick()
    assert world.log(run)[1:] == ["The Slurm session has ended; no job of it is left."]


def test_one_session_s_failure_does_not_stop_the_others(world: World) -> None:
    runs = sorted(world.run(dg.DagsterRunStatus.FAILURE) for _ in range(3))
    world.compute.ends[runs[0]] = LedgerDamaged("allocation.json cannot be read.")
    world.compute.ends[runs[1]] = ZeroDivisionError("nothing to do with Slurm")
    for _ in range(2):
        world.tick()
    assert world.compute.calls.count(f"end {runs[2]}") == 1
    assert world.log(runs[0]) == ["The Slurm session could not be ended: allocation.json cannot be read."]
    assert world.log(runs[1]) == ["Ending the Slurm session failed: ZeroDivisionError: nothing to do with Slurm"]


def test_a_cluster_that_cannot_be_reached_ends_the_tick_and_no_more(world: World) -> None:
    for _ in range(2):
        run = world.run(dg.DagsterRunStatus.FAILURE)
        world.compute.ends[run] = HostUnreachable("No connection to login:22.")
    assert "1 left for the next tick" in world.tick()

    def fails() -> tuple[FoundSession, ...]:
        raise HostUnreachable("No connection to login:22.")

    cursor = world.cursor
    world.compute.find_sessions = fails  # type: ignore[method-assign]
    assert world.tick() == "The sessions could not be listed: No connection to login:22."
    assert world.cursor == cursor


def test_an_old_directory_is_removed_and_a_younger_one_kept(world: World) -> None:
    old, young = world.run(dg.DagsterRunStatus.SUCCESS), world.run(dg.DagsterRunStatus.SUCCESS)
    world.directory(old, ended_seconds_ago=14 * DAY)
    world.directory(young, ended_seconds_ago=14 * DAY - 1)
    assert world.tick() == f"{old}: its old directory was removed."
    assert world.compute.calls == [f"remove {old}"]
    world.sensor = session_cleanup_sensor(keep_seconds=None)
    world.directory(young, ended_seconds_ago=9_999 * DAY)
    world.tick()
    assert list(world.compute.found) == [young]


def test_a_time_to_keep_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="keep_seconds"):
        session_cleanup_sensor(keep_seconds=-1)
