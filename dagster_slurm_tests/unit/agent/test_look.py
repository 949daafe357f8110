"""One look at the session directory: files in, facts out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dagster_slurm.agent import decide
from dagster_slurm.agent.files import (
    Session,
    create_exclusively,
    exists,
    modified_at,
    read_document,
    write_document,
)
from dagster_slurm.agent.grant import Grant
from dagster_slurm.agent.look import Look, read_host, signal_file
from dagster_slurm.agent.records import Settings

MEMORY = decide.Memory(started_at=0.0)


class Directory:
    """A session directory, seen by node ``n2`` of job 2."""

    def __init__(self, path: Path, *, node_index: int = 0, node_count: int = 1) -> None:
        self.path = path
        self.session = Session(str(path))
        self.session.create_folders()
        (path / "submissions" / "t2").mkdir(parents=True)
        grant = Grant("2", "n2", node_index, node_count, 4, 0, 1024**3)
        self.looking = Look(self.session, Settings("t2", drain_window_seconds=120), grant)
        self.looking.clock = write_document(self.session.node("2", "n2"), {})

    def write(self, name: str, content: Any) -> None:
        (self.path / name).write_text(json.dumps(content))

    def look(self, now: float = 100.0, memory: decide.Memory = MEMORY) -> decide.Seen:
        self.looking.hurry()
        return self.looking.look(memory, now)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_an_empty_directory_tells_nothing(directory: Directory) -> None:
    seen = directory.look()
    assert (seen.leads, seen.cluster, seen.own, seen.drain_deadline) == (None, None, None, None)
    assert not seen.closing
    assert not seen.terminated


def test_the_head_is_followed_to_its_cluster_file(directory: Directory) -> None:
    directory.write("allocation.json", {"head": {"slurm_job_id": "1", "token": "t1"}})
    entry = {"ray_node_id": "ab", "state": "ALIVE", "slurm_job_id": "2", "node": "n2", "instance": "9.1"}
    directory.write("cluster/1.json", {"head_job_id": "1", "address": "10.0.0.1:1", "nodes": [entry]})
    run = decide.RayRun(decide.WORKER, "9.1", 0.0, "10.0.0.1:1", alive=True)
    seen = directory.look(memory=decide.Memory(started_at=0.0, run=run))
    assert seen.leads is False
    assert seen.cluster is not None
    assert seen.cluster.address == "10.0.0.1:1"
    assert seen.cluster.age_seconds < 60
    assert seen.own is not None
    assert seen.own.ray_node_id == "ab"


def test_a_head_without_a_recorded_id_is_found_by_its_token(directory: Directory) -> None:
    directory.write("allocation.json", {"head": None, "worker_submissions": {"t1": {"role": "head"}}})
    directory.write("cluster/7.json", {"head_job_id": "7", "token": "other", "address": "10.0.0.7:1"})
    assert directory.look().cluster is None
    directory.write("cluster/8.json", {"head_job_id": "8", "token": "t1", "address": "10.0.0.8:1"})
    cluster = directory.look().cluster
    assert cluster is not None
    assert cluster.head_job_id == "8"


@pytest.mark.parametrize(("node_index", "leads"), [(0, True), (1, False)])
def test_O_13_only_the_first_node_of_the_heads_allocation_is_the_head(
    tmp_path: Path, node_index: int, leads: bool
) -> None:
    directory = Directory(tmp_path, node_index=node_index, node_count=2)
    directory.write("allocation.json", {"head": {"slurm_job_id": "2", "token": "t2"}})
    assert directory.look().leads is leads
    assert directory.look().with_head


def test_one_that_an_election_claimed_leads_and_is_not_published(directory: Directory) -> None:
    claimed = {"head": {"slurm_job_id": "1", "token": "t1"}, "election": {"slurm_job_id": "2", "nonce": "ab"}}
    directory.write("allocation.json", claimed)
    directory.write("cluster/1.json", {"head_job_id": "1", "address": "10.0.0.1:1"})
    seen = directory.look()
    assert (seen.leads, seen.published, seen.cluster) == (True, False, None)
    assert seen.with_head
    directory.write("cluster/2.json", {"head_job_id": "2", "token": "t2", "address": "10.0.0.2:1"})
    seen = directory.look()
    assert seen.cluster is not None
    assert seen.cluster.address == "10.0.0.2:1"
    directory.write("allocation.json", {"head": {"slurm_job_id": "2", "token": "t2"}, "election": None})
    seen = directory.look()
    assert (seen.leads, seen.published) == (True, True)
    directory.write("allocation.json", {"head": {"slurm_job_id": "1", "token": "t1"}, "election": None})
    seen = directory.look()
    assert not seen.with_head
    assert (seen.leads, seen.published) == (False, False), "who lost an election stops"


def test_a_claim_is_the_first_nodes_alone(tmp_path: Path) -> None:
    directory = Directory(tmp_path, node_index=1, node_count=2)
    directory.write("allocation.json", {"head": {"slurm_job_id": "1"}, "election": {"slurm_job_id": "2"}})
    assert directory.look().leads is False


def test_a_successor_stands_by(directory: Directory) -> None:
    directory.write("allocation.json", {"head": {"slurm_job_id": "1"}, "successor": {"slurm_job_id": "2"}})
    assert directory.look().stands_by
    directory.write("allocation.json", {"head": {"slurm_job_id": "2", "token": "t2"}, "successor": None})
    assert not directory.look().stands_by


def test_a_damaged_ledger_keeps_what_was_known(directory: Directory) -> None:
    directory.write("allocation.json", {"head": {"slurm_job_id": "2"}})
    assert directory.look().leads is True
    (directory.path / "allocation.json").write_text('{"head": {"slurm_')
    assert directory.look().leads is True
    (directory.path / "allocation.json").unlink()
    assert directory.look().leads is True


def test_an_old_cluster_file_has_an_age_by_the_filesystems_clock(directory: Directory) -> None:
    directory.write("allocation.json", {"head": {"slurm_job_id": "1"}})
    directory.write("cluster/1.json", {"head_job_id": "1", "address": "10.0.0.1:1"})
    assert directory.looking.clock is not None
    old = directory.looking.clock - 50
    os.utime(directory.path / "cluster" / "1.json", (old, old))
    cluster = directory.look().cluster
    assert cluster is not None
    assert cluster.age_seconds == pytest.approx(50, abs=0.1)


def test_a_drain_file_counts_from_when_it_is_first_seen_and_never_extends(directory: Directory) -> None:
    directory.write("submissions/t2/drain", {"deadline": 5, "remaining_seconds": 60})
    assert directory.look(now=100.0).drain_deadline == 160.0
    assert directory.look(now=130.0).drain_deadline == 160.0
    directory.write("submissions/t2/drain", {"deadline": 5, "remaining_seconds": 600})
    assert directory.look(now=131.0).drain_deadline == 160.0
    (directory.path / "submissions" / "t2" / "drain").unlink()
    assert directory.look(now=132.0).drain_deadline == 160.0


def test_a_damaged_drain_file_drains_with_the_workers_own_window(directory: Directory) -> None:
    (directory.path / "submissions" / "t2" / "drain").write_text("{")
    assert directory.look(now=100.0).drain_deadline == 220.0


def test_signals_are_seen_at_once(directory: Directory) -> None:
    directory.looking.receive(signal.SIGUSR1)
    directory.looking.wait(30)
    assert directory.look(now=100.0).drain_deadline == 210.0
    assert directory.look(now=150.0).drain_deadline == 210.0
    assert not directory.look(now=150.0).terminated
    directory.looking.receive(signal.SIGTERM)
    told = directory.look(now=160.0)
    assert (told.terminated, told.drain_deadline) == (True, 160.0 + decide.TERM_DRAIN_SECONDS)
    assert told.drain_reason == "Slurm ends it (preempted or cancelled)"
    directory.looking.receive(signal.SIGTERM)
    assert directory.look(now=170.0).drain_deadline == told.drain_deadline


def test_a_task_of_several_nodes_takes_SIGTERM_alone_for_a_warning(tmp_path: Path) -> None:
    directory = Directory(tmp_path, node_count=2)
    directory.looking.receive(signal.SIGTERM)
    warned = directory.look(now=100.0)
    assert (warned.terminated, warned.drain_deadline) == (False, 210.0)
    create_exclusively(signal_file(directory.session, "t2", signal.SIGTERM), "")
    told = directory.look(now=110.0)
    assert (told.terminated, told.drain_deadline) == (True, 110.0 + decide.TERM_DRAIN_SECONDS)


def test_signals_passed_on_by_the_batch_step_count_once_and_only_with_several_nodes(tmp_path: Path) -> None:
    alone = Directory(tmp_path / "alone")
    several = Directory(tmp_path / "several", node_count=2)
    for directory in (alone, several):
        create_exclusively(signal_file(directory.session, "t2", signal.SIGUSR1), "")
    assert alone.look(now=100.0).drain_deadline is None
    assert several.look(now=100.0).drain_deadline == 210.0
    assert several.look(now=150.0).drain_deadline == 210.0
    create_exclusively(signal_file(several.session, "t2", signal.SIGTERM), "")
    assert several.look(now=151.0).terminated


def test_closing_is_seen_and_never_forgotten(directory: Directory) -> None:
    (directory.path / "closing").touch()
    assert directory.look().closing
    (directory.path / "closing").unlink()
    assert directory.look().closing


def test_the_lease_is_compared_with_our_own_report_and_not_with_a_clock(directory: Directory) -> None:
    lease = directory.path / "lease"
    lease.touch()
    assert directory.looking.clock is not None
    os.utime(lease, (directory.looking.clock - 30, directory.looking.clock - 30))
    assert directory.look().lease_age_seconds == pytest.approx(30, abs=0.1)
    os.utime(lease, (directory.looking.clock + 30, directory.looking.clock + 30))
    assert directory.look().lease_age_seconds == 0.0


def test_a_missing_lease_counts_from_our_first_report(directory: Directory) -> None:
    assert directory.look().lease_age_seconds == 0.0
    assert directory.looking.clock is not None
    directory.looking.clock += 40
    assert directory.look().lease_age_seconds == pytest.approx(40)
    directory.looking.clock = None
    assert directory.look().lease_age_seconds is None


def test_a_session_directory_that_is_gone_is_timed(directory: Directory) -> None:
    assert directory.look(now=100.0).session_gone_seconds == 0.0
    away = directory.path.with_name("away")
    directory.path.rename(away)
    assert directory.look(now=101.0).session_gone_seconds == 0.0
    assert directory.look(now=131.0).session_gone_seconds == 30.0
    away.rename(directory.path)
    assert directory.look(now=132.0).session_gone_seconds == 0.0


def test_the_shared_filesystem_is_looked_at_in_intervals(directory: Directory) -> None:
    directory.look(now=100.0)
    (directory.path / "closing").touch()
    directory.looking.interval_seconds = 2.0
    assert not directory.looking.look(MEMORY, 101.9).closing
    assert directory.looking.look(MEMORY, 102.0).closing


# -- files -------------------------------------------------------------------------------------------


def test_a_document_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    written_at = write_document(str(path), {"a": 1})
    write_document(str(path), {"a": 2})
    document = read_document(str(path))
    assert document is not None
    assert document.content == {"a": 2}
    assert document.modified_at >= written_at
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_what_is_no_object_is_no_document(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert read_document(str(tmp_path / "x.json")) is None


def test_missing_files(tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "such")
    assert read_document(missing) is None
    assert exists(missing) is False
    assert modified_at(missing) is None
    assert exists(str(tmp_path)) is True


def test_a_file_is_claimed_once(tmp_path: Path) -> None:
    assert create_exclusively(str(tmp_path / "claim"), "a")
    assert not create_exclusively(str(tmp_path / "claim"), "b")
    assert (tmp_path / "claim").read_text() == "a"


def test_the_host_has_cpus_and_memory() -> None:
    host = read_host()
    assert host.cpus >= 1
    assert host.memory_bytes > 0
    assert 0 <= host.shared_memory_free_bytes <= host.shared_memory_bytes
