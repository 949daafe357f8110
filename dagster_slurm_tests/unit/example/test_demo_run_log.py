"""The demo follows a run through Dagster's event log: real runs of a real instance."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from example_project.demo.dagster_services import prepare_home
from example_project.demo.run_log import RunLog, RunProgress


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return prepare_home(tmp_path / "home")


@pytest.fixture
def instance(home: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(home)) as instance:
        yield instance


@dg.asset
def digits_search(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    context.log.info("3 of 12 tasks done, best score 0.9712")
    context.log.info("12 of 12 tasks done, best score 0.9905")
    return dg.MaterializeResult(metadata={"best_score": 0.9905, "tasks": 12})


@dg.asset
def broken_search(context: dg.AssetExecutionContext) -> None:
    context.log.info("3 of 12 tasks done")
    raise ValueError("no space left for checkpoints")


def test_a_run_that_succeeds(home: Path, instance: DagsterInstance) -> None:
    run = dg.materialize([digits_search], instance=instance)
    with closing(RunLog(home, run.run_id)) as log:
        assert log.read() is DagsterRunStatus.SUCCESS
        assert log.materialized("digits_search")
    assert log.progress == RunProgress(done=12, total=12, failure=None, metadata={"best_score": 0.9905, "tasks": 12})
    assert log.progress.tasks == "tasks 12/12 done"


def test_a_run_that_fails_says_why(home: Path, instance: DagsterInstance) -> None:
    run = dg.materialize([broken_search], instance=instance, raise_on_error=False)
    with closing(RunLog(home, run.run_id)) as log:
        assert log.read() is DagsterRunStatus.FAILURE
        assert not log.materialized("broken_search")
    assert log.progress.done == 3
    assert log.progress.failure == "ValueError: no space left for checkpoints"


def test_nothing_is_known_of_a_run_that_does_not_exist_yet(home: Path) -> None:
    with closing(RunLog(home, "a15f2e7c-0000-4000-8000-000000000000")) as log:
        assert log.read() is DagsterRunStatus.NOT_STARTED
    assert log.progress.tasks == "no task reported yet"


def test_a_home_has_its_databases_before_anything_starts(home: Path) -> None:
    made = {str(path.relative_to(home)) for path in home.rglob("*.db")}
    assert made == {"history/runs.db", "history/runs/index.db", "schedules/schedules.db"}
