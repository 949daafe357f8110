"""Fixtures of all tests: one real Slurm for the whole run, started when the first test asks for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from dagster_slurm_tests import counting
from dagster_slurm_tests.amount import FULL_SET_SEED, load_profile
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import processes_of, until

_BASES = itertools.count(1)

load_profile()


def pytest_report_header() -> str:
    """How much of the generated tests runs, and from which seed."""
    return "generated tests: " + ("subset" if FULL_SET_SEED is None else f"full set, seed {FULL_SET_SEED}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count the faults that each test executed."""
    report = yield
    counting.note_report(item, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How often each fault was executed."""
    lines = counting.table()
    if lines:
        terminalreporter.section("faults executed")
        for line in lines:
            terminalreporter.write_line(line)


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
        bases = Path(started.fresh_base("last")).parent
        until(lambda: not ray_processes(bases), "no process of Ray left by any test", 60)


def ray_processes(directory: Path) -> list[str]:
    """What agents of sessions below this directory left of Ray."""
    commands = processes_of(directory).values()
    return [command for command in commands if "raylet" in command or "gcs_server" in command]


@pytest.fixture
def fresh_base(box: SlurmBox) -> Path:
    """An empty directory of the job user, mode 0700, to be used as a remote_base."""
    return box.fresh_base(f"{os.getpid()}-{next(_BASES)}")
