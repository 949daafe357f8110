"""Search the best support vector machine for handwritten digits, as many independent Ray tasks.

Runs on the cluster, in the head allocation. Every task needs one CPU, which only worker allocations
offer: the tasks wait until the policy has added some. A task that is lost with its worker runs again
on another one; what has finished is a checkpoint on the shared filesystem and is never repeated, not
even when the whole step is retried.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray
from dagster_pipes import PipesContext, open_dagster_pipes
from figures import (
    allocation_table,
    full_picture,
    png_markdown,
    score_table,
    small_picture,
)
from trials import (
    Outcome,
    Trial,
    dataset_digest,
    evaluate,
    grid,
    load_checkpoint,
    load_checkpoints,
    save_checkpoint,
    trial_key,
    write_whole,
)

from dagster_slurm.ray import report_work

TASK_RETRIES = 20
"""How often Ray starts a task again after its worker or node died. Bounded: a task that kills its
worker each time (for lack of memory, say) must end the search, not run for ever."""
LOG_LINES = 50
"""About how many progress lines a search writes to Dagster's event log, whatever its number of tasks."""


@ray.remote(num_cpus=1, max_retries=TASK_RETRIES)
def run_trial(trial: Trial, key: str, directory: str) -> Outcome:
    """One task on a worker. An earlier attempt may have finished it just before its worker was lost."""
    finished = load_checkpoint(Path(directory), key)
    if finished is None:
        finished = evaluate(trial, current_slurm_job_id())
        save_checkpoint(Path(directory), key, finished)
    return finished


def current_slurm_job_id() -> str | None:
    """The allocation this process runs in; None outside Slurm."""
    label = ray.get_runtime_context().get_node_labels().get("dagster-slurm/job")
    return label if isinstance(label, str) else os.environ.get("SLURM_JOB_ID")


class Progress:
    """Tells the policy what is left, and people how far the search is."""

    def __init__(self, pipes: PipesContext, total: int) -> None:
        self._pipes = pipes
        self._total = total
        self._line_every = max(1, total // LOG_LINES)

    def report(self, outcomes: Mapping[str, Outcome]) -> None:
        """To call at the start and after each finished task."""
        done = len(outcomes)
        report_work(remaining=self._total - done, done=done, total=self._total)
        if done % self._line_every == 0 or done == self._total:
            best = f", best score {max(o.score for o in outcomes.values()):.4f}" if outcomes else ""
            self._pipes.log.info(f"{done} of {self._total} tasks done{best}")


def search(trials: Sequence[Trial], directory: Path, pipes: PipesContext) -> tuple[Mapping[str, Outcome], int]:
    """Run what has no checkpoint yet.

    Returns:
        The outcome of every task by its key, and how many of them were finished before.
    """
    dataset = dataset_digest()
    keys = {trial_key(trial, dataset): trial for trial in trials}
    outcomes = dict(load_checkpoints(directory, list(keys)))
    reused = len(outcomes)
    progress = Progress(pipes, len(keys))
    progress.report(outcomes)
    running = {run_trial.remote(trial, key, str(directory)): key for key, trial in keys.items() if key not in outcomes}
    while running:
        ready, _ = ray.wait(list(running), num_returns=1)
        for reference in ready:
            outcomes[running.pop(reference)] = ray.get(reference)
            progress.report(outcomes)
    return outcomes, reused


def publish(outcomes: Sequence[Outcome], reused: int, directory: Path, pipes: PipesContext) -> None:
    """Save the full picture and report the result as the asset's materialization."""
    best = max(outcomes, key=lambda outcome: outcome.score)
    picture = full_picture(outcomes)
    picture_path = directory / "scores.png"
    write_whole(picture_path, picture)
    pipes.report_asset_materialization(
        metadata={
            "best_parameters": f"C = {best.trial.cost:g}, gamma = {best.trial.gamma:g}",
            "best_score": round(best.score, 5),
            "tasks": len(outcomes),
            "tasks_reused": reused,
            "allocations_used": len({o.slurm_job_id for o in outcomes if o.slurm_job_id is not None}),
            "cpu_seconds": round(sum(outcome.cpu_seconds for outcome in outcomes), 1),
            "map": {"type": "md", "raw_value": small_picture(outcomes)},
            "map_full": {"type": "md", "raw_value": png_markdown(picture)},
            "map_file": {"type": "path", "raw_value": str(picture_path)},
            "scores": {"type": "table", "raw_value": score_table(outcomes)},
            "tasks_by_allocation": {"type": "table", "raw_value": allocation_table(outcomes)},
        }
    )


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; see ``--help``."""
    session = os.environ.get("DAGSTER_SLURM_SESSION_DIR")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=int, default=8, help="how many values of C")
    parser.add_argument("--gammas", type=int, default=6, help="how many values of gamma")
    parser.add_argument("--folds", type=int, default=5, help="parts of one cross-validation")
    parser.add_argument("--repeats", type=int, default=2, help="cross-validations per task: the task's size")
    parser.add_argument("--samples", type=int, default=None, help="images to use; all when left out")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(session, "digits") if session else None,
        required=session is None,
        help="where checkpoints and the picture go, on the shared filesystem; in the session's directory when left out",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    """Run the search on the Ray cluster that RAY_ADDRESS names (without it: on this machine)."""
    arguments = parse_arguments(argv)
    trials = grid(
        arguments.costs,
        arguments.gammas,
        folds=arguments.folds,
        repeats=arguments.repeats,
        samples=arguments.samples,
    )
    directory: Path = arguments.directory
    with open_dagster_pipes() as pipes:
        ray.init(log_to_driver=False)
        outcomes, reused = search(trials, directory, pipes)
        publish(list(outcomes.values()), reused, directory, pipes)


if __name__ == "__main__":
    main(sys.argv[1:])
