"""The resource on the box, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster_slurm import SlurmComputeResource, SlurmQueueOptions
from dagster_slurm_tests.cluster import SlurmBox

#: Small enough that several fit on a node, and gone soon when a test breaks.
SMALL = SlurmQueueOptions(partition="cpu", mem="200M", time_limit="00:10:00")


def fields_of(box: SlurmBox, base: Path) -> dict[str, Any]:
    """The fields that say where the box is."""
    return {
        "host": box.host,
        "port": box.port,
        "user": box.user,
        "key_file": box.key_file,
        "known_hosts": box.known_hosts,
        "remote_base": str(base),
        "remote_setup": box.remote_setup,
        "slurm_bin": box.slurm_bin,
        "ray_python": box.ray_python,
    }


def resource_on(box: SlurmBox, base: Path, **changed: Any) -> SlurmComputeResource:
    """A resource for a box, with sessions below ``base``."""
    return SlurmComputeResource(**{**fields_of(box, base), "queue": SMALL, **changed})


def jobs_of(box: SlurmBox, session_id: str) -> dict[str, str]:
    """State of each job of a session that is pending or runs, by id; seen by Slurm's administrator."""
    listing = ["squeue", "--noheader", f"--name=dagster-{session_id}", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"]
    return dict(line.split() for line in box.run([*listing, "--format=%A %T"]).stdout.splitlines())


def submitted_by(box: SlurmBox, session_id: str) -> list[str]:
    """Ids of all jobs that a session has submitted so far, from accounting's newest records and the queue."""
    listing = ["squeue", "--noheader", "--states=all", f"--name=dagster-{session_id}", "--format=%A"]
    return box.run(listing).stdout.split()


def environment_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """The same fields as environment variables, for definitions in another process."""
    return {f"TEST_{name.upper()}": str(value) for name, value in fields.items() if value is not None}
