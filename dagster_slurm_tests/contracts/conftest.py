"""The two worlds that a contract is held to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.contracts.worlds import RealWorld, SimulatedWorld, World
from dagster_slurm_tests.sessions import make_place


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A session with a head that is held."""
    if request.param == "simulated":
        yield SimulatedWorld()
        return
    box: SlurmBox = request.getfixturevalue("box")
    base: Path = request.getfixturevalue("fresh_base")
    place = make_place(box, base)
    made = RealWorld(box, place, base)
    yield made
    made.clear()
    box.run(["scancel", f"--name={place.job_name}", f"--user={box.user}"])
