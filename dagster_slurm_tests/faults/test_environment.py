"""Slurm variables in the user's profile: each by itself changes no answer and no command."""

from __future__ import annotations

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

VARIABLES = {
    "SQUEUE_STATES": "RUNNING",
    "SQUEUE_PARTITION": "gpu-a",
    "SQUEUE_USERS": "root",
    "SQUEUE_NAMES": "another",
    "SQUEUE_FORMAT": "%i",
    "SQUEUE_FORMAT2": "JobID",
    "SQUEUE_SORT": "-i",
    "SQUEUE_ALL": "1",
    "SQUEUE_ARRAY": "1",
    "SBATCH_PARTITION": "gpu-a",
    "SBATCH_JOB_NAME": "another",
    "SBATCH_RESERVATION": "none-such",
    "SBATCH_ACCOUNT": "none-such",
    "SBATCH_QOS": "none-such",
    "SBATCH_EXCLUSIVE": "true",
    "SBATCH_REQUEUE": "1",
    "SBATCH_ARRAY_INX": "0-4",
    "SBATCH_HINT": "nonsense",
    "SCANCEL_STATE": "RUNNING",
    "SCANCEL_PARTITION": "gpu-a",
    "SCANCEL_NAME": "another",
    "SCANCEL_INTERACTIVE": "1",
    "SLURM_TIME_FORMAT": "%H",
    "SLURM_CLUSTERS": "elsewhere",
    "SLURM_JOB_ID": "1",
}


@pytest.mark.fault("F20")
def test_D_7_P_3_each_variable_by_itself_changes_nothing(place: Place, observer: Observer) -> None:
    place.create()
    place.open().reconcile_workers(WorkerIntent("w", 2, HELD))
    expected = {w.slurm_job_id: (w.state, w.partition) for w in place.open().inspect().workers("w")}
    assert set(expected.values()) == {("PENDING", "cpu")}
    for name, value in VARIABLES.items():
        session = place.open(faults=f"export {name}={value}\n")
        seen = session.inspect()
        assert seen.certain, name
        assert {w.slurm_job_id: (w.state, w.partition) for w in seen.workers("w") if w.committed} == expected, name
        assert session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted == (), name
        if name.startswith("SQUEUE_"):
            executed("F20", real=1)
            continue
        (added,) = session.reconcile_workers(WorkerIntent("w", 3, HELD)).submitted
        assert observer.queue()[added] == "PENDING", name
        assert session.reconcile_workers(WorkerIntent("w", 2, HELD), release=[added]).released == (added,), name
        until(lambda added=added: added not in observer.queue(), f"{name}: cancelled")  # type: ignore[misc]
        session.close()
        executed("F20", real=1)
    observer.check()
