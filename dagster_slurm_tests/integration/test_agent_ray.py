"""The agent with a real Ray and without Slurm: head and workers as processes on this host.

The tests of this module share one cluster and run in order: what one drains is gone for the next.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dagster_slurm.remote.payload_scripts import read_running, replace_script
from dagster_slurm.remote.shell import LocalShell
from dagster_slurm_tests.integration.hand_made import HandMadeSession, read_json, wait_for

pytestmark = pytest.mark.timeout(600)

HEAD, FIRST, SECOND, NEXT_HEAD = "1", "2", "3", "4"

SHARED_WORK = """
import os, time
import ray
from dagster_slurm.ray import report_work, wait_for_stable_ray_resources
ray.init(log_to_driver=False)
print("free:", wait_for_stable_ray_resources({"CPU": 2}, poll_interval_seconds=0.2, timeout_seconds=60)["CPU"])

@ray.remote(num_cpus=1)
def where(path):
    open(path, "w").close()
    deadline = time.monotonic() + 60
    while len(os.listdir(os.path.dirname(path))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_labels()["dagster-slurm/job"]

os.mkdir("started")
tasks = [where.remote(os.path.abspath(f"started/{i}")) for i in range(2)]
report_work(remaining=len(tasks), kind="where")
print("jobs:", sorted(ray.get(tasks)))
report_work(remaining=0)
print("slurm:", [name for name in os.environ if name.startswith(("SLURM", "PMI"))])
"""

#: A task on the node of one job that ends when a file appears.
HELD_TASK = """
import os, sys, time
import ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1, max_retries=0, label_selector={"dagster-slurm/job": os.environ["JOB"]})
def held(started, go):
    open(started, "w").close()
    while not os.path.exists(go):
        time.sleep(0.05)
    return "finished"

print(ray.get(held.remote(os.path.abspath("started"), os.path.abspath("go"))))
"""


@pytest.fixture(scope="module")
def session() -> Iterator[HandMadeSession]:
    with tempfile.TemporaryDirectory(prefix="agent-") as directory:
        session = HandMadeSession(Path(directory) / "session")
        try:
            session.write_ledger(HEAD)
            # dagster_slurm itself is found as a client ships it: below lib.
            os.symlink(Path(__file__).parents[2] / "dagster_slurm", session.directory / "lib" / "dagster_slurm")
            session.start(HEAD, head_only=True, ray_resources={"licence": 2})
            session.start(FIRST, intent="gpu helpers")
            session.start(SECOND)
            yield session
        finally:
            session.end()


def held_payload(session: HandMadeSession, payload_id: str, job: str) -> Path:
    """A payload whose task has started on the node of that job."""
    directory = session.start_payload(payload_id, HELD_TASK, env={"JOB": job})
    wait_for("the task's start", lambda: (directory / "files" / "started").exists())
    return directory


def final_state(session: HandMadeSession, payload_id: str) -> str:
    states = ("succeeded", "failed", "cancelled")
    state = wait_for(
        f"the end of payload {payload_id}",
        lambda: session.payload_status(payload_id).get("state") in states and session.payload_status(payload_id),
    )["state"]
    return str(state)


def drain(session: HandMadeSession, job: str, remaining_seconds: float) -> None:
    session.write(f"submissions/t{job}/drain", {"deadline": 0, "remaining_seconds": remaining_seconds})


def processes_of(session: HandMadeSession, job: str) -> list[str]:
    return [line for line in session.processes_left() if f"{session.local_directory}/ds-{job}-" in line]


def test_O_3_O_8_O_14_allocations_on_one_host_join_and_are_known_by_labels(session: HandMadeSession) -> None:
    for job in (HEAD, FIRST, SECOND):
        wait_for(f"join of job {job}", partial(session.has_state, job, "joined"))
    nodes = session.cluster_nodes(HEAD)
    assert {job: node["node"] for job, node in nodes.items()} == {HEAD: "c1", FIRST: "c2", SECOND: "c3"}
    for job in (HEAD, FIRST, SECOND):
        assert session.report(job)["ray_node_id"] == nodes[job]["ray_node_id"]
        assert session.report(job)["head_job_id"] == HEAD
        assert nodes[job]["state"] == "ALIVE"
    cpus = {job: node["resources"].get("CPU", 0) for job, node in nodes.items()}
    assert cpus == {HEAD: 0, FIRST: 1, SECOND: 1}
    assert nodes[HEAD]["resources"]["licence"] == 2
    assert nodes[FIRST]["intent"] is not None
    assert nodes[FIRST]["intent"].startswith("gpu-helpers")


def test_the_cluster_file_is_rewritten_while_nothing_happens(session: HandMadeSession) -> None:
    path = session.directory / "cluster" / f"{HEAD}.json"
    content = read_json(path)
    assert content is not None
    assert content["demand"] == []
    assert content["ray_version"]
    wait_for("two more beats", lambda: (read_json(path) or {}).get("beat", 0) >= content["beat"] + 2, 20)


def test_a_payload_runs_tasks_on_the_workers_and_reports_work(session: HandMadeSession) -> None:
    directory = session.start_payload("work", SHARED_WORK)
    state = final_state(session, "work")
    log = (directory / "log").read_text()
    assert state == "succeeded", log
    assert "free: 2.0" in log
    assert "jobs: ['2', '3']" in log
    assert "slurm: []" in log
    assert read_json(directory / "work.json") == {"remaining": 0}
    assert (directory / f"claim.{HEAD}").exists()
    assert session.payload_status("work")["exit_code"] == 0


def test_payloads_run_side_by_side_and_keep_their_exit_status(session: HandMadeSession) -> None:
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nraise SystemExit({})"
    first = session.start_payload("seven", waits.format(7))
    second = session.start_payload("killed", waits.format(0))
    session.start_payload("missing", "", argv=["/no/such/program"])
    for payload_id in ("seven", "killed"):
        wait_for(f"{payload_id} runs", partial(session.payload_runs, payload_id))
    (first / "files" / "go").touch()
    assert final_state(session, "seven") == "failed"
    assert session.payload_status("seven")["exit_code"] == 7
    (second / "cancel").touch()
    assert final_state(session, "killed") == "cancelled"
    assert session.payload_status("killed")["signal"] == signal.SIGTERM
    assert final_state(session, "missing") == "failed"
    assert "/no/such/program" in session.payload_status("missing")["message"]


def test_what_a_killed_attempt_of_a_step_left_running_is_ended(session: HandMadeSession) -> None:
    left, waits = "1-aaaa-old-1", "import time\nwhile True: time.sleep(0.1)"
    session.start_payload(left, waits)
    wait_for("the payload runs", partial(session.payload_runs, left))
    script = replace_script(str(session.directory), "aaaa", "new")
    assert read_running(LocalShell().run(script), "here") == (left,)
    assert final_state(session, left) == "cancelled"
    assert read_running(LocalShell().run(script), "here") == ()


def test_waiting_tasks_are_published_as_demand(session: HandMadeSession) -> None:
    program = "import ray\nray.init(log_to_driver=False)\nray.get(ray.remote(num_cpus=5)(lambda: 1).remote())"
    directory = session.start_payload("demand", program)
    path = session.directory / "cluster" / f"{HEAD}.json"
    demand = wait_for("demand", lambda: (read_json(path) or {}).get("demand"))
    assert demand == [{"shape": {"CPU": 5.0}, "count": 1}]
    (directory / "cancel").touch()
    assert final_state(session, "demand") == "cancelled"


def test_O_1_ray_that_was_killed_on_a_node_is_started_again(session: HandMadeSession) -> None:
    before = session.cluster_nodes(HEAD)[SECOND]["ray_node_id"]
    raylets = [line for line in processes_of(session, SECOND) if "raylet/raylet " in line]
    assert len(raylets) == 1
    os.kill(int(raylets[0].split()[0]), signal.SIGKILL)

    def joined_anew() -> bool:
        node = session.cluster_nodes(HEAD).get(SECOND)
        return node is not None and node["ray_node_id"] != before and session.state(SECOND) == "joined"

    wait_for("a new Ray node", joined_anew)
    assert session.report(SECOND)["ray_node_id"] == session.cluster_nodes(HEAD)[SECOND]["ray_node_id"]
    assert "Ray ended on this node by itself" in session.log(SECOND)


def test_O_6_O_7_a_drained_node_finishes_its_task_and_leaves_the_others_alone(session: HandMadeSession) -> None:
    payload = held_payload(session, "held", SECOND)
    drain(session, SECOND, 120)
    wait_for("DRAINING", lambda: session.cluster_nodes(HEAD)[SECOND]["state"] == "DRAINING", 30)
    wait_for("the report", lambda: session.state(SECOND) == "draining")
    assert session.report(SECOND)["draining"] is True
    assert session.agents[SECOND].poll() is None
    assert session.payload_status("held")["state"] == "running"
    (payload / "files" / "go").touch()
    assert final_state(session, "held") == "succeeded"
    assert session.agents[SECOND].wait(timeout=60) == 0
    assert processes_of(session, SECOND) == []
    assert session.state(SECOND) == "leaving"
    wait_for("the node is gone", lambda: SECOND not in session.cluster_nodes(HEAD))
    assert session.cluster_nodes(HEAD)[FIRST]["state"] == "ALIVE"
    assert session.agents[FIRST].poll() is None


def test_a_task_longer_than_the_window_is_ended_at_the_deadline(session: HandMadeSession) -> None:
    held_payload(session, "too-long", FIRST)
    drain(session, FIRST, 5)
    assert session.agents[FIRST].wait(timeout=60) == 0
    assert "the deadline has passed" in session.report(FIRST)["message"]
    assert processes_of(session, FIRST) == []
    assert final_state(session, "too-long") == "failed"


def test_a_worker_that_the_ledger_makes_the_head_takes_over_and_the_old_head_follows(session: HandMadeSession) -> None:
    session.start(NEXT_HEAD)
    wait_for("the join of the next head", partial(session.has_state, NEXT_HEAD, "joined"))
    session.start_payload("interrupted", "import time\nwhile True: time.sleep(1)")
    wait_for("the payload runs", partial(session.payload_runs, "interrupted"))
    session.write_ledger(NEXT_HEAD)
    assert final_state(session, "interrupted") == "failed"
    assert session.payload_status("interrupted")["ended_with_head"] is True
    wait_for("both in the new cluster", lambda: set(session.cluster_nodes(NEXT_HEAD)) == {HEAD, NEXT_HEAD})
    assert not (session.directory / "cluster" / f"{HEAD}.json").exists()
    wait_for("the old head's report", lambda: session.report(HEAD).get("head_job_id") == NEXT_HEAD)
    session.start_payload("after", "import ray\nray.init(log_to_driver=False)\nprint(ray.cluster_resources())")
    assert final_state(session, "after") == "succeeded"
    assert session.payload_status("after")["head_job_id"] == NEXT_HEAD


def test_a_payload_whose_heads_ray_is_killed_ended_with_its_head_which_starts_again(session: HandMadeSession) -> None:
    before = session.cluster_nodes(NEXT_HEAD)[NEXT_HEAD]["ray_node_id"]
    session.start_payload("crashed", "import ray, time\nray.init(log_to_driver=False)\nwhile True: time.sleep(0.1)")
    wait_for("the payload runs", partial(session.payload_runs, "crashed"))
    raylets = [line for line in processes_of(session, NEXT_HEAD) if "raylet/raylet " in line]
    assert len(raylets) == 1
    os.kill(int(raylets[0].split()[0]), signal.SIGKILL)
    assert final_state(session, "crashed") == "failed"
    assert session.payload_status("crashed")["ended_with_head"] is True

    def leads_again() -> bool:
        node = session.cluster_nodes(NEXT_HEAD).get(NEXT_HEAD)
        return node is not None and node["ray_node_id"] != before and session.has_state(NEXT_HEAD, "joined")

    wait_for("a new head of Ray", leads_again)


def test_closing_ends_the_head_and_leaves_nothing_behind(session: HandMadeSession) -> None:
    session.start_payload("endless", "import time\nwhile True: time.sleep(1)")
    wait_for("the payload runs", partial(session.payload_runs, "endless"))
    (session.directory / "closing").touch()
    for job in (HEAD, NEXT_HEAD):
        assert session.agents[job].wait(timeout=60) == 0
    assert session.processes_left() == []
    status = session.payload_status("endless")
    assert (status["state"], status["ended_with_head"]) == ("failed", True)
    assert "the session is closing" in status["message"]
    assert list((session.directory / "cluster").iterdir()) == []
    assert os.listdir(session.local_directory) == []
