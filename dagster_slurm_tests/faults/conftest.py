"""Fixtures of the fault tests."""

from __future__ import annotations

from dagster_slurm_tests.sessions import kill, observer, pause, place

__all__ = ["kill", "observer", "pause", "place"]
