"""A payload of Ray tasks: the head offers no CPU, so they wait for the workers that the policy adds."""

import ray
from dagster_pipes import open_dagster_pipes

from dagster_slurm.ray import report_work

TASKS = 6


@ray.remote(num_cpus=1, max_retries=10)
def square(number: int) -> tuple[int, str]:
    """A task; tells which allocation it ran in."""
    return number * number, str(ray.get_runtime_context().get_node_labels().get("dagster-slurm/job"))


with open_dagster_pipes() as pipes:
    print("payload of", pipes.asset_key)
    report_work(remaining=TASKS)
    ray.init(log_to_driver=False)
    waiting = [square.remote(number) for number in range(TASKS)]
    results: list[tuple[int, str]] = []
    while waiting:
        ready, waiting = ray.wait(waiting)
        results += ray.get(ready)
        report_work(remaining=len(waiting))
        pipes.log.info(f"{len(results)} of {TASKS} tasks done")
    pipes.report_asset_materialization(
        metadata={
            "sum": sum(value for value, _ in results),
            "jobs": sorted({job for _, job in results}),
            "greeting": pipes.get_extra("greeting"),
        }
    )
