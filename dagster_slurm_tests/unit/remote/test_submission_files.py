"""What is handed to sbatch: the batch script and the agent's settings."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import attrs
import pytest

from dagster_slurm.agent.records import Settings
from dagster_slurm.allocations.plan import Submit
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.submission import agent_settings, batch_script
from dagster_slurm_tests.builders import WORKER_SHAPE, token

PLACE = SessionSettings(session_id="run-1", session_dir="/base/it's here", python="/opt/my python")
IN_CONTAINER = attrs.evolve(PLACE, container_command=("apptainer", "exec", "/images/ray.sif"), network_interface="ib0")
SUBMIT = Submit(token(7), "successor", None, WORKER_SHAPE.digest)


def test_the_agent_reads_what_the_session_writes() -> None:
    read = Settings.from_json(token(7), json.loads(agent_settings(IN_CONTAINER, WORKER_SHAPE, SUBMIT)))
    assert read.container_command == IN_CONTAINER.container_command
    assert (read.network_interface, read.python) == ("ib0", "/opt/my python")
    plain = Settings.from_json(token(7), json.loads(agent_settings(PLACE, WORKER_SHAPE, SUBMIT)))
    assert (plain.container_command, plain.network_interface) == ((), None)


@pytest.mark.parametrize(("place", "python"), [(PLACE, "'/opt/my python'"), (IN_CONTAINER, "python3")])
def test_the_batch_script_is_sound_and_starts_the_right_python(place: SessionSettings, python: str) -> None:
    script = batch_script(place, WORKER_SHAPE, SUBMIT)
    assert f"exec {python} -u" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_job_writes_its_agent_s_settings_once_its_claim_is_its_own(tmp_path: Path) -> None:
    here = attrs.evolve(PLACE, session_dir=str(tmp_path / "it's here"), setup="exit 0")
    folder = Path(here.submission_dir(token(7)))
    folder.mkdir(parents=True)

    def start(job: str) -> str:
        script = f"token={token(7)}\n{batch_script(here, WORKER_SHAPE, SUBMIT)}"
        return subprocess.run(
            ["sh"], input=script, text=True, capture_output=True, check=True, env={"SLURM_JOB_ID": job, **os.environ}
        ).stdout

    assert "dropped" in start("7")
    assert list(folder.iterdir()) == []
    (folder / "ready").touch()
    for _ in ("first start", "after a requeue"):
        assert start("7") == ""
        assert (folder / "agent.json").read_text() == agent_settings(here, WORKER_SHAPE, SUBMIT)
    assert "dropped" in start("8")
