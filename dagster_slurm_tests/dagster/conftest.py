"""Fixtures of the Dagster layer on the box."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.dagster.box_resource import environment_of, fields_of
from dagster_slurm_tests.dagster.launch import Launched

Launch: TypeAlias = Callable[..., Launched]


@pytest.fixture
def launch(box: SlurmBox, fresh_base: Path, tmp_path: Path) -> Iterator[Launch]:
    """Start a job of ``jobs.py`` on the box; fields of the resource may be changed."""
    started: list[Launched] = []

    def start(job: str, executor: str = "multiprocess", **changed: str) -> Launched:
        fields = {**fields_of(box, fresh_base), **changed}
        made = Launched(tmp_path / f"home-{len(started)}", job, executor, environment_of(fields))
        started.append(made)
        return made

    yield start
    for run in started:
        run.close()
        if run.run is not None:
            box.run(["scancel", f"--name=dagster-{run.run_id}"])
