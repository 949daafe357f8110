"""Children that never outlive the agent: real processes in a subprocess that plays the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dagster_slurm.agent.processes import (
    Process,
    all_processes,
    below,
    end_tree,
    is_same,
    read_process,
    start,
    wait_until,
)

#: A child that leaves its process group, whose parent ends at once: an orphan that no group signal reaches.
ORPHAN_MAKER = """
import os, subprocess, sys
program = "import os, sys, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", program])
"""

AGENT = f"""
import os, subprocess, sys
from dagster_slurm.agent import processes
processes.become_subreaper()
reader, writer = os.pipe()
child = processes.start([sys.executable, "-c", {ORPHAN_MAKER!r}], os.environ, output=writer)
pid = int(os.fdopen(reader, closefd=False).readline())
child.wait()
assert processes.wait_until(lambda: processes.read_process(pid).parent == os.getpid(), 30)
print(pid, flush=True)
sys.stdin.readline()
print(processes.end_everything(), flush=True)
"""


def living(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def test_an_orphan_outside_of_every_group_is_found_and_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        orphan = int(agent.stdout.readline())
        assert living(orphan)
        answer, _ = agent.communicate("end\n", timeout=60)
    assert answer.strip() == "[]"
    assert agent.returncode == 0
    assert not living(orphan)


FOLLOWED = """
import os, subprocess, sys, time
from dagster_slurm.agent import processes
child = processes.start([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_ends_when_the_agent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", FOLLOWED], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        assert living(child)
        agent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not living(child), 30)


def test_a_child_that_ignores_term_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w').close()\ntime.sleep(600)"
    )
    child = start([sys.executable, "-c", program, str(ready)], os.environ)
    assert wait_until(ready.exists, 30)
    end_tree(child, grace_seconds=0.1)
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_obeys_is_not_waited_for_longer_than_it_takes() -> None:
    child = start([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
    begun = time.monotonic()
    end_tree(child, grace_seconds=60)
    assert child.returncode == -signal.SIGTERM
    assert time.monotonic() - begun < 30


def test_a_process_is_told_apart_from_a_later_one_with_its_pid() -> None:
    own = read_process(os.getpid())
    assert own is not None
    assert is_same(own)
    assert not is_same(Process(own.pid, own.parent, own.state, own.started - 1, own.name))


def test_a_process_that_is_gone_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert read_process(child.pid) is None


def test_this_process_is_listed_with_its_parent() -> None:
    own = next(process for process in all_processes() if process.pid == os.getpid())
    assert own.parent == os.getppid()


@pytest.mark.parametrize(("root", "pids"), [(1, [2, 3, 4]), (2, [4]), (4, [])])
def test_descendants_come_after_their_parents(root: int, pids: list[int]) -> None:
    table = [Process(pid, parent, "S", pid, "x") for pid, parent in [(4, 2), (2, 1), (3, 1), (9, 8)]]
    assert [process.pid for process in below(root, table)] == pids
