"""Fixtures of all tests: one real Slurm for the whole run, started when the first test asks for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_slurm_tests.cluster import SlurmBox

_BASES = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the box needs a real Slurm, and is marked so."""
    for item in items:
        if "box" in getattr(item, "fixturenames", ()):
            item.add_marker("integration")


@pytest.fixture(scope="session")
def box() -> Iterator[SlurmBox]:
    """A running box, shared by all tests.

    DAGSTER_SLURM_TEST_BOX=<directory of a running box> uses that one and leaves it running.
    """
    directory = os.environ.get("DAGSTER_SLURM_TEST_BOX")
    if directory:
        yield SlurmBox.attach(directory)
        return
    with SlurmBox.start() as started:
        yield started


@pytest.fixture
def fresh_base(box: SlurmBox) -> Path:
    """An empty directory of the job user, mode 0700, to be used as a remote_base."""
    return box.fresh_base(f"{os.getpid()}-{next(_BASES)}")
