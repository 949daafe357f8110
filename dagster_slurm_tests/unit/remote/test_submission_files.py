"""What is handed to sbatch: the batch script and the agent's settings."""

from __future__ import annotations

import json
import subprocess

import attrs
import pytest

from dagster_slurm.agent.records import Settings
from dagster_slurm.allocations.plan import Submit
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.submission import agent_settings, batch_script
from dagster_slurm_tests.builders import WORKER_SHAPE, token

PLACE = SessionSettings(session_id="run-1", session_dir="/base/it's here", python="/opt/my python")
IN_CONTAINER = attrs.evolve(PLACE, container_command=("apptainer", "exec", "/images/ray.sif"), network_interface="ib0")


def test_the_agent_reads_what_the_session_writes() -> None:
    submit = Submit(token(7), "successor", None, WORKER_SHAPE.digest)
    read = Settings.from_json(token(7), json.loads(agent_settings(IN_CONTAINER, WORKER_SHAPE, submit)))
    assert read.container_command == IN_CONTAINER.container_command
    assert (read.network_interface, read.python) == ("ib0", "/opt/my python")
    plain = Settings.from_json(token(7), json.loads(agent_settings(PLACE, WORKER_SHAPE, submit)))
    assert (plain.container_command, plain.network_interface) == ((), None)


@pytest.mark.parametrize(("place", "python"), [(PLACE, "'/opt/my python'"), (IN_CONTAINER, "python3")])
def test_the_batch_script_is_sound_and_starts_the_right_python(place: SessionSettings, python: str) -> None:
    script = batch_script(place, token(7))
    assert f"exec {python} -u" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
