"""Ray tasks with checkpoints: what has one is never run again. All but the first two wait until the test says go."""

import os
import time
from pathlib import Path

import ray
from dagster_pipes import open_dagster_pipes

TASKS = 5
AT_ONCE = 2
SESSION = Path(os.environ["DAGSTER_SLURM_SESSION_DIR"])


@ray.remote(num_cpus=1, max_retries=10)
def work(number: int) -> int:
    """A task; leaves a line for each time it ran, and a checkpoint."""
    if number >= AT_ONCE:
        deadline = time.monotonic() + 120
        while not (SESSION / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
    with (SESSION / f"ran.{number}").open("a") as lines:
        lines.write("once\n")
    written = SESSION / f"checkpoint.{number}.{os.getpid()}"
    written.write_text(str(number * number))
    written.rename(SESSION / f"checkpoint.{number}")
    return number * number


with open_dagster_pipes() as pipes:
    done = [number for number in range(TASKS) if (SESSION / f"checkpoint.{number}").exists()]
    pipes.log.info(f"attempt with {len(done)} checkpoints")
    ray.init(log_to_driver=False)
    waiting = [work.remote(number) for number in range(TASKS) if number not in done]
    ray.get(waiting)
    total = sum(int((SESSION / f"checkpoint.{number}").read_text()) for number in range(TASKS))
    pipes.report_asset_materialization(metadata={"total": total, "reused": len(done)})
