"""Fixtures of tests that use a session on the box."""

from __future__ import annotations

from dagster_slurm_tests.sessions import observer, pause, place

__all__ = ["observer", "pause", "place"]
