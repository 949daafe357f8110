"""The step that hears what the batch step does not, with a program in the place of srun."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dagster_slurm.agent.steps import Listener
from dagster_slurm_tests.sessions import until


@pytest.fixture
def said() -> list[str]:
    return []


def srun(directory: Path, text: str) -> dict[str, str]:
    """An environment in which ``srun`` does this."""
    program = directory / "srun"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n1"}


# Runs what follows its options, as srun would.
RUNS = 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"'


def test_it_hears_the_first_SIGTERM_once(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    environ = srun(tmp_path, f"echo ready >{tmp_path}/ready\n{RUNS}")
    monkeypatch.setenv("PATH", environ["PATH"])
    listener = Listener(str(tmp_path), environ, said.append)
    until((tmp_path / "ready").exists, "its start")
    assert not listener.heard()
    (pid,) = listener.child_pids()

    def sleeps() -> bool:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())

    until(sleeps, "it listens")
    os.kill(pid, signal.SIGTERM)
    until(listener.heard, "the signal heard")
    assert not listener.heard()
    assert len(said) == 1
    assert "SIGTERM" in said[0]
    listener.end()


def test_a_step_that_cannot_be_started_is_told_once(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = srun(tmp_path, "exit 3")
    monkeypatch.setenv("PATH", environ["PATH"])
    listener = Listener(str(tmp_path), environ, said.append)

    def told() -> bool:
        assert not listener.heard()
        return bool(said)

    until(told, "its end told")
    assert not listener.heard()
    assert said == ["the step that listens for a preemption has ended (srun: 3); its grace time is not used"]
    listener.end()


def test_only_a_batch_script_of_one_node_of_a_real_allocation_needs_it(tmp_path: Path) -> None:
    environ = srun(tmp_path, "exit 0")
    assert Listener.is_needed(environ, 1)
    assert not Listener.is_needed(environ, 2)
    assert not Listener.is_needed({"PATH": environ["PATH"]}, 1)
    assert not Listener.is_needed({**environ, "PATH": "/nowhere"}, 1)
