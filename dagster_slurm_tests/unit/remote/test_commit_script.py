"""The commit script with stand-ins for Slurm's commands: how they are called, and whose lock it takes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_slurm.allocations.lifecycle import is_over
from dagster_slurm.allocations.settings import session_id_for
from dagster_slurm.errors import ConfigurationError, LockTimeout
from dagster_slurm.remote.scripts import part
from dagster_slurm_tests.fake_slurm import FakeSlurm, fake

__all__ = ["fake"]


def test_plain_calls_grow_shrink_and_end(fake: FakeSlurm) -> None:
    assert fake.call(2).submitted == ("2", "3")
    assert fake.live() == ["1", "2", "3"]
    assert fake.call(2).submitted == ()
    assert fake.call(1).released == ("3",)
    assert fake.live() == ["1", "2"]
    fake.end()
    assert (fake.session / "closing").exists()


# -- cancelling --------------------------------------------------------------------------------------


def test_K_1_pending_allocations_are_cancelled_without_a_signal_and_every_cancel_is_bounded(fake: FakeSlurm) -> None:
    fake.call(3)
    fake.call(1)
    fake.end()
    calls = fake.calls("scancel")
    assert len(calls) == 2
    assert not any("--signal" in call or " -s" in call for call in calls)
    assert "--state=PENDING" in calls[0].split()
    text = part("commit.sh")
    assert len(re.findall(r"\bscancel \$", text)) == len(re.findall(r"timeout -k 2 12 scancel \$", text)) > 0


def test_K_7_one_name_for_each_cancel_and_the_listing_tells_whether_it_worked(fake: FakeSlurm) -> None:
    fake.call(2)
    fake.instead("scancel", "exit 0")
    outcome = fake.end()
    assert not is_over(fake.site().observe()), "exit status 0 says nothing"
    assert outcome.observation is not None
    names = [word for call in fake.calls("scancel") for word in call.split() if word.startswith("--name=")]
    assert set(names) == {"--name=dagster-fake"}
    with pytest.raises(ConfigurationError):
        session_id_for("long,zzz", None)


def test_K_8_the_option_is_name_on_every_version(fake: FakeSlurm) -> None:
    fake.call(2)
    fake.call(0)
    fake.end()
    assert fake.calls("scancel")
    for call in fake.calls("scancel"):
        words = [word.partition("=")[0] for word in call.split() if word.startswith("-")]
        assert set(words) <= {"--name", "--user", "--state"}


# -- the lock ----------------------------------------------------------------------------------------


def leave_lock(fake: FakeSlurm, owner: str | None, age_seconds: int) -> Path:
    lock = fake.session / "lock"
    lock.mkdir()
    past = time.time() - age_seconds
    if owner is not None:
        (lock / owner).touch()
        os.utime(lock / owner, (past, past))
    os.utime(lock, (past, past))
    return lock


def owner(*, host: str, pid: int, start: str) -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.readlink("/proc/self/ns/pid").removeprefix("pid:")
    return f"owner.{'0' * 32},{host},{boot},{space},{pid},{start}"


def start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_N_1_lock_without_an_owner_is_only_ever_a_leftover_and_is_taken_at_once(fake: FakeSlurm) -> None:
    lock = leave_lock(fake, None, 3 * 3600)
    assert len(fake.call(2, fake.site(lock_wait_seconds=0)).submitted) == 2
    assert not lock.exists()


def test_N_1_lock_whose_owner_may_still_act_is_not_taken_and_the_error_names_it(fake: FakeSlurm) -> None:
    here = owner(host=socket.gethostname(), pid=os.getpid(), start=start_of(os.getpid()))
    lock = leave_lock(fake, here, 30)
    with pytest.raises(LockTimeout) as caught:
        fake.call(2, fake.site(lock_wait_seconds=0))
    said = str(caught.value)
    assert all(word in said for word in (str(lock), "0" * 32, socket.gethostname(), f"process {os.getpid()} "))
    assert re.search(r"age 3\d s", said)
    assert fake.live() == ["1"]


def test_N_3_process_of_another_host_is_not_looked_for_here(fake: FakeSlurm) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock = leave_lock(fake, owner(host="login1", pid=gone.pid, start="1"), 30)
    with pytest.raises(LockTimeout, match="login1"):
        fake.call(2, fake.site(lock_wait_seconds=0))
    assert lock.exists()


def test_N_3_of_all_who_find_a_dead_owner_one_takes_the_lock(fake: FakeSlurm) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    leave_lock(fake, owner(host=socket.gethostname(), pid=gone.pid, start="1"), 0)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: fake.call(3), range(4)))
    assert fake.live() == ["1", "2", "3", "4"]
    assert sorted(job for outcome in outcomes for job in outcome.submitted) == ["2", "3", "4"]
    assert not (fake.session / "lock").exists()


@pytest.mark.parametrize("name", ["commit.sh", "create.sh", "observe.sh", "prelude.sh"])
def test_N_6_no_script_needs_locks_of_the_filesystem(name: str) -> None:
    assert not re.search(r"flock|lockfile|fcntl", part(name))


@pytest.mark.fault("F14")
def test_N_4_marker_that_was_made_but_reported_as_failure_submits_nothing_and_loses_nothing(fake: FakeSlurm) -> None:
    lost = fake.call(2, fake.site(edits={"    made=$?": "    made=1"}))
    assert fake.edited
    assert (lost.submitted, fake.live()) == ((), ["1"])
    assert lost.held_back
    assert fake.call(2).submitted == ("2", "3")
    assert not fake.ledger().worker_submissions
