"""Fixtures of the fault tests."""

from __future__ import annotations

import pytest

from dagster_slurm_tests.sessions import kill, observer, pause, place

__all__ = ["kill", "observer", "pause", "place"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: a further repetition; left out of the short run with -m 'not slow'")
