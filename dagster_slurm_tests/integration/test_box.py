"""The box itself: a real Slurm that starts, can be disturbed, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_slurm_tests.cluster import BoxError, NodeGroup, SlurmBox, packages
from dagster_slurm_tests.cluster.box import parse_rpc_counts
from dagster_slurm_tests.cluster.daemons import Process, identify, is_alive, marked_processes
from dagster_slurm_tests.cluster.definition import MARKER
from dagster_slurm_tests.cluster.places import base_directory, claim_ports, release_ports
from dagster_slurm_tests.cluster.ray_python import LOCK_FILE, locked_lines

REPOSITORY = Path(__file__).resolve().parents[2]
ONE_NODE = (NodeGroup("cpu", count=1, default=True),)


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def over_ssh(box: SlurmBox, script: str) -> str:
    """Run a script as a client does: in a shell that reads no profile."""
    done = subprocess.run(
        box.ssh_command("/bin/sh", "-s"),
        input=f"{box.remote_setup}\n{script}",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(box: SlurmBox, command: str, *options: str) -> str:
    arguments = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", command]
    return box.as_user(arguments).stdout.strip()


def state_of(box: SlurmBox, job: str) -> str:
    return box.run(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]).stdout.strip()


def cluster_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dagster_slurm_tests.cluster", *arguments]


@pytest.fixture(autouse=True)
def no_jobs_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the shared box empty, for the tests that use it."""
    shared: SlurmBox | None = request.getfixturevalue("box") if "box" in request.fixturenames else None
    yield
    if shared is not None:
        shared.cancel_all()


def test_box_has_ten_idle_nodes_in_three_partitions(box: SlurmBox) -> None:
    listing = box.run(["sinfo", "--noheader", "--format=%R %D %T %G"]).stdout.split("\n")
    words = {line.split()[0]: line.split()[1:] for line in listing if line}
    assert words["gpu-a"][:2] == ["4", "idle"]
    assert words["gpu-a"][2].startswith("gpu:a100:4")
    assert words["gpu-b"][2].startswith("gpu:v100:2")
    assert words["cpu"] == ["4", "idle", "(null)"]


def test_box_settings_describe_an_empty_private_base_of_the_job_user(box: SlurmBox, fresh_base: Path) -> None:
    settings = box.settings(ray=False)
    assert settings["host"] == "127.0.0.1"
    for path in (Path(str(settings["remote_base"])), fresh_base):
        status = path.stat()
        assert (pwd.getpwuid(status.st_uid).pw_name, stat.S_IMODE(status.st_mode)) == (box.user, 0o700)
    assert list(fresh_base.iterdir()) == []


def test_job_submitted_over_ssh_runs_on_a_gpu_node_and_is_accounted(box: SlurmBox, fresh_base: Path) -> None:
    job = over_ssh(
        box,
        f"sbatch --parsable --partition=gpu-a --gres=gpu:a100:2 --comment='a comment' --output={fresh_base}/out"
        " --wrap 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'",
    ).strip()
    accounting = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}"]
    accounting.append("--format=state,user,account,partition,comment,alloctres")
    # slurmdbd gets a job's fields one after the other, some of them seconds after its end.
    until(
        lambda: box.run(accounting).stdout.startswith(f"COMPLETED|{box.user}|research|gpu-a|a comment|"),
        "job accounted as completed",
    )
    row = box.run(accounting).stdout.strip().split("|")
    assert {"gres/gpu=2"} <= set(row[5].split(","))
    node, devices = (fresh_base / "out").read_text().split()
    assert node in box.node_states()
    assert node.startswith("gpu-a-")
    assert devices == "0,1"


def test_partition_and_account_that_do_not_exist_are_refused(box: SlurmBox) -> None:
    with pytest.raises(BoxError, match="invalid partition specified"):
        submit(box, "true", "--partition=nowhere")
    with pytest.raises(BoxError, match="Invalid account"):
        submit(box, "true", "--account=nobody")
    submit(box, "true", "--account=teaching", "--qos=short")


def test_stopped_controller_hangs_and_goes_on_when_continued(box: SlurmBox) -> None:
    box.stop_daemon("slurmctld")
    try:
        answer = box.as_user(["timeout", "-k", "1", "2", "squeue"], check=False)
    finally:
        box.continue_daemon("slurmctld")
    assert answer.returncode == 124
    assert "JOBID" in box.as_user(["squeue"]).stdout


@pytest.mark.parametrize("name", ["slurmctld", "slurmdbd", "munged", "mariadbd", "sshd"])
def test_killed_daemon_comes_back(box: SlurmBox, name: str) -> None:
    box.kill_daemon(name)
    assert box.daemons()[name] is None
    with pytest.raises(BoxError, match="does not run"):
        box.stop_daemon(name)
    box.start_daemon(name)
    with pytest.raises(BoxError, match="runs already"):
        box.start_daemon(name)
    # A killed controller remembers what it last saved, also a job that has ended since; its node corrects that.
    until(lambda: over_ssh(box, "squeue --noheader --format=%A") == "", "an empty queue", 60)
    until(lambda: box.run(["sacctmgr", "--noheader", "list", "cluster"], check=False).returncode == 0, "accounting")
    until(lambda: set(box.node_states().values()) == {"idle"}, "all nodes idle")


def test_killed_controller_keeps_a_running_job(box: SlurmBox) -> None:
    job = submit(box, "sleep 600")
    until(lambda: state_of(box, job) == "RUNNING", "job runs")
    saved = box.directory / "state" / "job_state"
    before = saved.stat().st_mtime_ns if saved.exists() else 0
    submit(box, "true", "--hold")  # a change, so that the whole state is written once more
    until(lambda: saved.exists() and saved.stat().st_mtime_ns > before, "controller saved its state")
    box.kill_daemon("slurmctld")
    box.start_daemon("slurmctld")
    assert state_of(box, job) == "RUNNING"


def test_rpc_counts_are_per_user_and_can_be_reset(box: SlurmBox) -> None:
    box.reset_rpc_counts()
    assert box.rpc_counts(box.user) == {}
    submit(box, "true", "--hold")
    assert box.rpc_counts(box.user)[box.user].count == 1
    assert box.rpc_counts()["REQUEST_SUBMIT_BATCH_JOB"].count == 1


def test_parse_rpc_counts_reads_one_table_only() -> None:
    text = (
        "Remote Procedure Call statistics by message type\n"
        "\tREQUEST_PING                            ( 1008) count:3      ave_time:10     total_time:30\n\n"
        "Remote Procedure Call statistics by user\n"
        "\troot            (       0) count:12     ave_time:5      total_time:60\n"
        "\tdslurm          (    1001) count:2      ave_time:50     total_time:100\n\n"
        "Pending RPC statistics\n\tNo pending RPCs\n"
    )
    assert list(parse_rpc_counts(text, "message type")) == ["REQUEST_PING"]
    users = parse_rpc_counts(text, "user")
    assert {name: (found.count, found.total_time_microseconds) for name, found in users.items()} == {
        "root": (12, 60),
        "dslurm": (2, 100),
    }


def test_ssh_command_count_counts_each_command(box: SlurmBox) -> None:
    before = box.ssh_command_count()
    for _ in range(3):
        over_ssh(box, "true")
    assert box.ssh_command_count() == before + 3


def test_cancel_all_empties_the_queue(box: SlurmBox) -> None:
    submit(box, "sleep 600")
    submit(box, "sleep 600", "--hold")
    box.cancel_all()
    assert box.run(["squeue", "--noheader"]).stdout == ""


def test_two_boxes_run_side_by_side_and_one_ends_alone(box: SlurmBox) -> None:
    with SlurmBox.start(groups=ONE_NODE) as other:
        assert other.port != box.port
        assert set(other.node_states()).isdisjoint(box.node_states())
        job = submit(other, "sleep 600")
        until(lambda: state_of(other, job) == "RUNNING", "job runs in the other box")
        assert box.run(["squeue", "--noheader"]).stdout == ""
        members = set(other.processes())
        assert members.isdisjoint(box.processes())
    assert not any(is_alive(process) for process in members)
    assert set(box.node_states().values()) == {"idle"}


def test_down_ends_processes_that_do_not_want_to() -> None:
    box = SlurmBox.start(groups=ONE_NODE)
    try:
        note = box.fresh_base("note") / "pids"
        hidden = "env -i setsid /bin/sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' & a=$!"
        deaf = "(trap '' TERM; while :; do sleep 1; done) & b=$!"
        submit(box, f"{hidden}; {deaf}; echo $a $b >{note}.new; mv {note}.new {note}; wait")
        until(note.exists, "job runs")
        login = subprocess.Popen(box.ssh_command("sleep", "600"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: box.ssh_command_count() == 2, "login runs")
        written = [identify(int(pid)) for pid in note.read_text().split()]
        box.stop_daemon("slurmctld")
        members = {*box.processes(), *(process for process in written if process is not None)}
        assert len(written) == 2
        assert set(written) <= members
    finally:
        box.down()
    login.wait(timeout=30)
    assert [process for process in members if is_alive(process)] == []
    assert not box.directory.exists()


def test_start_that_fails_half_way_leaves_nothing() -> None:
    directory = base_directory() / f"fails-{os.getpid()}"
    with pytest.raises(BoxError, match=r"slurmctld ended after its start(.|\n)*nonsense"):
        SlurmBox.start(directory, groups=ONE_NODE, extra_slurm_conf=["SelectType=select/nonsense"])
    assert not directory.exists()
    assert marked_processes(MARKER, str(directory)) == []


def test_directory_that_is_used_or_out_of_reach_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BoxError, match="not an empty directory"):
        SlurmBox.start(tmp_path)
    private = Path(tempfile.mkdtemp(dir="/tmp"))
    with pytest.raises(BoxError, match="too long for Unix sockets"):
        SlurmBox.start(private / ("x" * 70))
    if os.geteuid() == 0:
        with pytest.raises(BoxError, match="cannot reach"):
            SlurmBox.start(private / "box")
    private.rmdir()  # fails unless it is empty


def test_box_ends_when_its_starter_is_killed() -> None:
    program = (
        "import time\n"
        "from dagster_slurm_tests.cluster import NodeGroup, SlurmBox\n"
        "box = SlurmBox.start(groups=(NodeGroup('cpu', count=1, default=True),))\n"
        "print(box.directory, flush=True)\n"
        "time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout:
        directory = Path(starter.stdout.readline().strip())
        members = SlurmBox.attach(directory).processes()
        starter.send_signal(signal.SIGKILL)
        starter.wait(timeout=30)
    assert len(members) >= 6
    until(lambda: not directory.exists(), "the guard ends the box")
    assert not any(is_alive(process) for process in members)


def test_command_line_from_up_to_down() -> None:
    directory = base_directory() / f"cli-{os.getpid()}"

    def call(*arguments: str, expect: int = 0) -> str:
        done = subprocess.run(
            cluster_command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout

    settings = json.loads(call("up", "--dir", str(directory), "--json", "--no-ray"))
    try:
        box = SlurmBox.attach(directory)
        assert settings == box.settings(ray=False)
        (status,) = json.loads(call("status", "--dir", str(directory), "--json"))
        assert set(status["nodes"].values()) == {"idle"}
        user, listing = call("shell", "--dir", str(directory), "-c", "id -un; sinfo -h -o %R | xargs").splitlines()
        assert (user, listing) == (box.user, "gpu-a gpu-b cpu")
        box.kill_daemon("slurmdbd")
        assert "slurmdbd DOWN" in call("status", "--dir", str(directory), expect=1)
        members = box.processes()
    finally:
        call("down", "--dir", str(directory))
    assert not any(is_alive(process) for process in members)
    call("down", "--dir", str(directory), expect=1)


def test_ray_python_has_the_locked_versions_and_runs_as_the_job_user(box: SlurmBox) -> None:
    version = box.as_user([box.ray_python, "-c", "import ray, sklearn, dagster_pipes; print(ray.__version__)"]).stdout
    assert f"ray=={version.strip()}" in locked_lines(LOCK_FILE.read_text(), ["ray"])


def test_locked_lines_take_whole_names_and_all_markers() -> None:
    lock = "numpy==1 ; python_version < '3.11'\nnumpy==2 ; python_version >= '3.11'\nnumpy-financial==3\nray==4\n"
    assert locked_lines(lock, ["ray", "numpy"]) == (
        "numpy==1 ; python_version < '3.11'",
        "numpy==2 ; python_version >= '3.11'",
        "ray==4",
    )


def test_port_blocks_are_given_once_and_come_back(tmp_path: Path) -> None:
    claimed = [claim_ports(tmp_path, 10) for _ in range(20)]
    assert len({ports.first for ports in claimed}) == 20
    for ports in claimed:
        release_ports(tmp_path / "another", ports)
        assert (base_directory() / "ports" / str(ports.first)).exists()
        release_ports(tmp_path, ports)
        assert not (base_directory() / "ports" / str(ports.first)).exists()


def test_process_is_not_confused_with_another_of_the_same_id() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(dataclasses.replace(own, started=own.started - 1))
    assert not is_alive(Process(pid=2**22 + 1, started=1))


def test_missing_programs_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: f"/bin/{name}" for name in packages.PROGRAMS if name not in ("munged", "slurmdbd")}
    monkeypatch.setattr(packages, "find_programs", lambda: found)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(BoxError, match=r"slurmdbd, munged\. Run as root: apt-get install munge slurmdbd$"):
        packages.ensure_programs()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BoxError, match="Install what Debian calls munge, slurmdbd"):
        packages.ensure_programs()


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 101\n", "#!/bin/sh\nexit 0\n", packages._POLICY_TEXT])
def test_installation_starts_no_service_and_leaves_the_policy_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(packages, "_POLICY", policy)
    monkeypatch.setattr(packages, "_POLICY_SAVED", tmp_path / "saved")
    if before is not None:
        policy.write_text(before)
        policy.chmod(0o755)
    with packages._no_service_starts():
        assert subprocess.run([policy, "munge", "start"], check=False).returncode == 101
    # One left behind by a killed installation goes away as well.
    after = policy.read_text() if policy.exists() else None
    assert after == (None if before == packages._POLICY_TEXT else before)
    assert not (tmp_path / "saved").exists()
