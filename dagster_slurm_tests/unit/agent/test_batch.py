"""The batch step of an allocation with several nodes, and how the agent is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_slurm.agent.batch import node_agent, node_count, wait_for_nodes
from dagster_slurm.agent.commands import main
from dagster_slurm.agent.files import Session
from dagster_slurm.agent.look import signal_file
from dagster_slurm.agent.records import Settings
from dagster_slurm.agent.steps import srun_command, srun_environment

AGENT = Path(__file__).parents[3] / "dagster_slurm" / "agent"


@pytest.mark.parametrize(
    ("environ", "count"),
    [({}, 1), ({"SLURM_JOB_NUM_NODES": "3"}, 3), ({"SLURM_NNODES": "2"}, 2), ({"SLURM_JOB_NUM_NODES": "x"}, 1)],
)
def test_number_of_nodes(environ: dict[str, str], count: int) -> None:
    assert node_count(environ) == count


def test_a_container_is_entered_with_its_own_python() -> None:
    session, settings = Session("/base/s"), Settings("t1", python="/opt/python")
    words = ["-u", str(AGENT), "node", "--session=/base/s", "--token=t1"]
    assert node_agent(session, settings) == [sys.executable, *words]
    inside = replace(settings, container_command=("apptainer", "exec", "ray.sif"))
    assert node_agent(session, inside) == ["apptainer", "exec", "ray.sif", "/opt/python", *words]


def test_one_agent_on_each_node_beside_whatever_else_runs_there() -> None:
    words = srun_command(3, ["python", "agent"])
    assert words[0] == "srun"
    assert words[-2:] == ["python", "agent"]
    for word in ("--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=0"):
        assert word in words


def test_P_1_P_5_memory_forms_reach_the_agents_and_not_srun() -> None:
    environ = srun_environment(
        {"SLURM_MEM_PER_CPU": "50", "SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_ID": "1", "PATH": "/bin"}
    )
    assert environ == {"SLURM_JOB_ID": "1", "PATH": "/bin", "DAGSTER_SLURM_GRANT_MEM_PER_CPU": "50"}


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGUSR1, "signal.USR1"), (signal.SIGTERM, "signal.TERM"), (signal.SIGINT, "signal.TERM")],
)
def test_signals_are_passed_on_through_files(tmp_path: Path, number: int, name: str) -> None:
    (tmp_path / "submissions" / "t").mkdir(parents=True)
    session = Session(str(tmp_path))
    expected = tmp_path / "submissions" / "t" / name
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\nraise SystemExit(5)"
    child = subprocess.Popen([sys.executable, "-c", waits, str(expected)], start_new_session=True)
    status = wait_for_nodes(session, Settings("t"), child, [number, number])
    assert status == (5 if number == signal.SIGUSR1 else 0)
    assert signal_file(session, "t", signal.SIGTERM if number == signal.SIGINT else number) == str(expected)


def test_it_runs_as_a_directory_under_another_name(tmp_path: Path) -> None:
    shipped = tmp_path / "elsewhere"
    shipped.symlink_to(AGENT)
    # A module with the name of Ray beside the directory must not be taken for Ray.
    (tmp_path / "ray.py").write_text("raise SystemExit('the wrong ray')")
    run = subprocess.run(
        [sys.executable, str(shipped), "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0
    assert "batch" in run.stdout


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "dagster_slurm.agent", "batch", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0
    assert "--token" in run.stdout


def test_it_imports_the_standard_library_only() -> None:
    program = f"""
import runpy, sys
sys.argv = ["agent", "--help"]
try:
    runpy.run_path({str(AGENT)!r}, run_name="__main__")
except SystemExit:
    print([name for name in ("ray", "attrs", "dagster", "dagster_slurm") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip().endswith("[]")


@pytest.mark.parametrize("content", [None, "", "[]", '{"role":'])
def test_settings_that_cannot_be_read_end_it_with_status_1(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "submissions" / "t"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "agent.json").write_text(content)
    before = os.umask(0o022)
    try:
        assert main(["batch", "--session", str(tmp_path), "--token", "t"]) == 1
    finally:
        os.umask(before)
    assert "agent.json is missing or damaged" in capsys.readouterr().out


def test_unknown_commands_are_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["start"])
    assert ended.value.code == 2
