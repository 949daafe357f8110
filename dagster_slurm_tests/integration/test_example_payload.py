"""The example's payload on a real Ray and without Slurm: workers that come and are lost, retries, Dagster Pipes."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import example_project
from dagster_slurm_tests.integration.hand_made import HandMadeSession, read_json, wait_for

pytestmark = pytest.mark.timeout(300)

SEARCH = Path(example_project.__file__).parent / "payload" / "search.py"
HEAD, LOST, SECOND = "1", "2", "3"
TINY = ("--costs", "2", "--gammas", "2", "--folds", "2", "--repeats", "1", "--samples", "200")


@pytest.fixture(scope="module")
def session() -> Iterator[HandMadeSession]:
    """A running head without CPUs and without workers."""
    with tempfile.TemporaryDirectory(prefix="example-") as directory:
        session = HandMadeSession(Path(directory) / "session")
        try:
            session.write_ledger(HEAD)
            os.symlink(SEARCH.parents[2] / "dagster_slurm", session.directory / "lib" / "dagster_slurm")
            session.start(HEAD, head_only=True)
            wait_for("the head", lambda: session.state(HEAD) == "joined")
            yield session
        finally:
            session.end()


def start_search(session: HandMadeSession, payload_id: str, *arguments: str, **spec: Any) -> Path:
    return session.start_payload(payload_id, "", argv=["{python}", str(SEARCH), *arguments], **spec)


def finished_well(session: HandMadeSession, payload_id: str) -> bool:
    """Whether the payload has succeeded; AssertionError with its output when it has failed."""
    state = session.payload_status(payload_id).get("state")
    assert state not in ("failed", "cancelled"), (session.directory / "payloads" / payload_id / "log").read_text()
    return state == "succeeded"


def done_tasks(payload: Path) -> int | None:
    work = read_json(payload / "work.json")
    return None if work is None else int(work["done"])


def checkpoints(directory: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """Time of writing and content of each checkpoint."""
    files = directory.glob("[!.]*.json")
    return {path.name: (path.stat().st_mtime_ns, read_json(path) or {}) for path in files}


def kill_worker(session: HandMadeSession, job: str) -> None:
    """End an allocation as a node failure does: everything at once, without a word."""
    session.agents[job].kill()
    session.agents[job].wait()
    for line in session.processes_left():
        if f"ds-{os.getuid()}-{job}-" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_a_task_lost_with_its_worker_runs_again_and_nothing_finished_is_repeated(session: HandMadeSession) -> None:
    size = ("--costs", "3", "--gammas", "3", "--repeats", "2")
    payload = start_search(session, "search", *size)
    wait_for("the first report", lambda: done_tasks(payload) == 0)
    assert read_json(payload / "work.json") == {"remaining": 9, "done": 0, "total": 9}
    session.start(LOST)
    wait_for("two finished tasks", lambda: (done_tasks(payload) or 0) >= 2)
    kill_worker(session, LOST)
    before = checkpoints(session.directory / "digits")
    assert 2 <= len(before) < 9
    session.start(SECOND)
    wait_for("the end of the search", lambda: finished_well(session, "search"), 180)
    after = checkpoints(session.directory / "digits")
    assert len(after) == 9
    assert {name: after[name] for name in before} == before
    assert {content["slurm_job_id"] for _, content in before.values()} == {LOST}
    assert {after[name][1]["slurm_job_id"] for name in after.keys() - before.keys()} == {SECOND}
    assert read_json(payload / "work.json") == {"remaining": 0, "done": 9, "total": 9}


# Both come from inside Dagster's open_pipes_session.
@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")
@pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated:DeprecationWarning")
def test_a_retried_step_repeats_nothing_and_its_result_arrives_in_dagster(session: HandMadeSession) -> None:
    @dg.asset
    def digits_search(context: dg.AssetExecutionContext) -> Iterator[Any]:
        payload_id = context.run.run_id[:8]
        messages = session.directory / f"{payload_id}.messages"
        with dg.open_pipes_session(
            context, dg.PipesEnvContextInjector(), dg.PipesFileMessageReader(str(messages))
        ) as pipes:
            start_search(session, payload_id, *TINY, env=pipes.get_bootstrap_env_vars())
            wait_for("the end of the search", lambda: finished_well(session, payload_id))
        yield from pipes.get_results()

    def materialize() -> tuple[dict[str, Any], list[str]]:
        with dg.DagsterInstance.ephemeral() as instance:
            run = dg.materialize([digits_search], instance=instance)
            logged = [entry.user_message for entry in instance.all_logs(run.run_id)]
        (event,) = run.get_asset_materialization_events()
        metadata = event.step_materialization_data.materialization.metadata
        return dict(metadata), [line for line in logged if "tasks done" in line]

    if session.state(SECOND) != "joined":
        session.start(SECOND)
    first, first_lines = materialize()
    second, second_lines = materialize()

    assert (first["tasks"].value, first["tasks_reused"].value, first["allocations_used"].value) == (4, 0, 1)
    assert (second["tasks"].value, second["tasks_reused"].value) == (4, 4)
    assert second["best_score"] == first["best_score"]
    assert first["best_score"].value > 0.8
    assert first["best_parameters"].value.startswith("C = ")
    assert [line.split(",")[0] for line in first_lines] == [f"{n} of 4 tasks done" for n in range(5)]
    assert [line.split(",")[0] for line in second_lines] == ["4 of 4 tasks done"]
    assert isinstance(first["scores"], dg.TableMetadataValue)
    assert len(first["scores"].records) == 4
    assert isinstance(first["map"], dg.MarkdownMetadataValue)
    assert Path(str(first["map_file"].value)).read_bytes().startswith(b"\x89PNG")
    assert [record.data["tasks"] for record in first["tasks_by_allocation"].records] == [4]
