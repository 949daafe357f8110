"""The tasks of the search and their checkpoints."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trials
from trials import Outcome, Trial, evaluate, grid, load_checkpoint, load_checkpoints, save_checkpoint, trial_key

TINY = Trial(cost=1.0, gamma=0.1, folds=2, repeats=1, samples=200)


def outcome(score: float = 0.9) -> Outcome:
    return Outcome(TINY, score=score, spread=0.01, cpu_seconds=1.5, slurm_job_id="12", node="n1")


def test_the_grid_has_every_pair_once_with_readable_values() -> None:
    tasks = grid(8, 6, folds=5, repeats=3, samples=None)
    assert len({(task.cost, task.gamma) for task in tasks}) == 48
    assert (tasks[0].cost, tasks[0].gamma) == (0.1, 0.01)
    assert (tasks[-1].cost, tasks[-1].gamma) == (100.0, 0.8)


def test_a_task_is_scored_the_same_every_time() -> None:
    first, second = evaluate(TINY, "12"), evaluate(TINY, None)
    assert (first.score, first.spread) == (second.score, second.spread)
    assert first.score > 0.8
    assert (first.slurm_job_id, second.slurm_job_id) == ("12", None)


def test_the_node_is_the_one_that_slurm_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "cpu-3")
    assert evaluate(TINY, None).node == "cpu-3"


@pytest.mark.parametrize(
    "other",
    [
        Trial(2.0, 0.1, 2, 1, 200),
        Trial(1.0, 0.2, 2, 1, 200),
        Trial(1.0, 0.1, 3, 1, 200),
        Trial(1.0, 0.1, 2, 2, 200),
        Trial(1.0, 0.1, 2, 1, None),
    ],
)
def test_a_checkpoint_is_of_one_task_only(other: Trial) -> None:
    assert trial_key(TINY, "data") != trial_key(other, "data")


def test_a_checkpoint_is_of_one_dataset_scoring_and_library_only(monkeypatch: pytest.MonkeyPatch) -> None:
    key = trial_key(TINY, "data")
    assert key == trial_key(TINY, "data")
    assert key != trial_key(TINY, "other data")
    with monkeypatch.context() as patch:
        patch.setattr(trials, "SCORING_VERSION", trials.SCORING_VERSION + 1)
        assert key != trial_key(TINY, "data")
    monkeypatch.setattr("sklearn.__version__", "0.0")
    assert key != trial_key(TINY, "data")


def test_what_was_saved_is_loaded_and_nothing_else_lies_around(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "digits", "k", outcome())
    assert load_checkpoint(tmp_path / "digits", "k") == outcome()
    assert load_checkpoints(tmp_path / "digits", ["k", "missing"]) == {"k": outcome()}
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["k.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"trial": {"cost": 1}}', '{"score": 0.5}'])
def test_a_damaged_checkpoint_counts_as_not_finished(tmp_path: Path, content: str) -> None:
    (tmp_path / "k.json").write_text(content)
    assert load_checkpoint(tmp_path, "k") is None
    save_checkpoint(tmp_path, "k", outcome())
    assert load_checkpoint(tmp_path, "k") == outcome()


def test_two_attempts_of_one_task_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    def save(number: int) -> Outcome | None:
        save_checkpoint(tmp_path, "k", outcome(number / 100))
        return load_checkpoint(tmp_path, "k")

    with ThreadPoolExecutor(8) as attempts:
        assert None not in list(attempts.map(save, range(100)))
    assert [path.name for path in tmp_path.iterdir()] == ["k.json"]
