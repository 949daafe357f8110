"""Fixtures of tests with a session on the box, or an sshd of their own."""

from __future__ import annotations

from dagster_slurm_tests.integration.loopback import login
from dagster_slurm_tests.sessions import kill, observer, pause, place

__all__ = ["kill", "login", "observer", "pause", "place"]
