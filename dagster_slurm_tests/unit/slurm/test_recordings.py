"""What real Slurm versions printed, read by the parsers."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.replies import (
    Ambiguous,
    ListedJob,
    Refused,
    ReplyFault,
    Submitted,
    parse_accounting,
    parse_listing,
    parse_ping,
    parse_submission,
    parse_test_only,
    sacct_arguments,
    squeue_arguments,
)
from dagster_slurm.slurm.tres import gpus_per_node_requested, parse_tres, total_gpus
from dagster_slurm_tests.recordings import names, read, versions

VERSIONS = pytest.mark.parametrize("version", versions())


def listed(version: str, name: str) -> tuple[ListedJob, ...]:
    recording = read(version, name)
    listing = parse_listing(recording.status, recording.text)
    assert listing.answered, listing.error
    return listing.jobs


def test_there_are_recordings() -> None:
    assert "22.05" in versions()


@VERSIONS
def test_live_jobs(version: str) -> None:
    jobs = listed(version, "squeue-live")
    by_reason = {job.reason: job for job in jobs if job.state == "PENDING"}
    assert set(by_reason) == {"BeginTime", "Dependency", "JobHeldUser", "Resources", "PartitionTimeLimit"}
    assert all(job.time_left_seconds is None and job.nodes == () for job in by_reason.values())
    assert by_reason["JobHeldUser"].time_limit_seconds == 3 * 86400 + 3780
    planned = by_reason["Resources"]
    assert planned.expected_start_at is not None
    assert planned.submitted_at is not None
    assert planned.expected_start_at > planned.submitted_at
    assert (planned.requested_nodes, gpus_per_node_requested(planned.tres_per_node)) == (4, 4)

    odd, lines, unlimited = sorted(
        (job for job in jobs if job.state == "RUNNING"), key=lambda job: int(job.slurm_job_id)
    )
    assert odd.comment == "tok:abc=1,x|y é \"q\" 's' $HOME %d \\n; end"
    assert odd.command is not None
    assert odd.command.endswith("/batch with blanks.sh an argument")
    assert len(odd.nodes) == odd.requested_nodes == 2
    assert total_gpus(parse_tres(odd.tres)) == 4
    assert odd.time_left_seconds is not None
    assert 86400 < odd.time_left_seconds <= 93840
    assert (lines.comment, total_gpus(parse_tres(lines.tres)), lines.tres_per_node) == (
        "first line\nsecond line",
        1,
        None,
    )
    assert (unlimited.time_left_seconds, unlimited.time_limit_seconds) == (None, None)
    assert unlimited.comment == "c" * 1000


@VERSIONS
def test_the_same_jobs_with_a_heading_or_a_named_cluster(version: str) -> None:
    ids = [job.slurm_job_id for job in listed(version, "squeue-live")]
    assert [job.slurm_job_id for job in listed(version, "squeue-named-cluster")] == ids
    assert [job.slurm_job_id for job in listed(version, "squeue-with-header")] == ids


@VERSIONS
def test_rare_states(version: str) -> None:
    jobs = listed(version, "squeue-rare")
    assert {job.state for job in jobs} <= {"PENDING", "SUSPENDED", "SPECIAL_EXIT", "REQUEUE_HOLD"}
    assert {"SUSPENDED", "SPECIAL_EXIT"} <= {job.state for job in jobs}
    assert any((job.reason or "").startswith("ReqNodeNotAvail, UnavailableNodes:") for job in jobs)
    suspended = next(job for job in jobs if job.state == "SUSPENDED")
    assert suspended.time_left_seconds is not None


@VERSIONS
def test_C_5_ended_jobs(version: str) -> None:
    jobs = listed(version, "squeue-ended")
    assert sorted(str(job.state) for job in jobs) == ["CANCELLED", "CANCELLED", "COMPLETED", "FAILED"]
    assert all(job.reason is None and job.time_left_seconds is None for job in jobs)


@VERSIONS
def test_B_1_final_states_in_accounting(version: str) -> None:
    recording = read(version, "sacct-ended")
    reply = parse_accounting(recording.status, recording.text)
    names_of_jobs = {job.name for job in listed(version, "squeue-ended")}
    rows = [reply.rows[job_id] for job_id in sorted(reply.rows, key=int)]
    assert [(row.state, row.exit_code) for row in rows] == [
        ("COMPLETED", 0),
        ("FAILED", 3),
        ("CANCELLED", 0),
        ("CANCELLED", 0),
    ]
    assert {row.name for row in rows} == names_of_jobs
    assert rows[-1].nodes == ()


@VERSIONS
@pytest.mark.parametrize(
    ("name", "answered", "fault"),
    [
        ("squeue-unknown-name", True, None),
        ("squeue-purged-id", True, None),
        ("squeue-controller-dead", False, ReplyFault.NO_ANSWER),
        ("squeue-controller-stopped", False, ReplyFault.NO_ANSWER),
        ("squeue-unknown-option", False, ReplyFault.USAGE),
        ("squeue-unknown-field", False, ReplyFault.USAGE),
        ("squeue-other-cluster", False, ReplyFault.ERROR),
    ],
)
def test_A_1_A_2_A_3_listings_without_jobs(version: str, name: str, answered: bool, fault: ReplyFault | None) -> None:
    recording = read(version, name)
    listing = parse_listing(recording.status, recording.text)
    assert (listing.answered, listing.jobs, listing.fault) == (answered, (), fault)


@VERSIONS
def test_B_4_B_13_accounting_without_rows(version: str) -> None:
    dead, unknown = read(version, "sacct-database-dead"), read(version, "sacct-unknown-id")
    assert parse_accounting(dead.status, dead.text).fault is ReplyFault.NO_ANSWER
    assert parse_accounting(unknown.status, unknown.text).answered


@VERSIONS
def test_I_1_accepted_submissions(version: str) -> None:
    plain, named = read(version, "sbatch-accepted"), read(version, "sbatch-named-cluster")
    assert parse_submission(plain.status, plain.stdout, plain.stderr) == Submitted(plain.stdout.strip())
    found = parse_submission(named.status, named.stdout, named.stderr)
    assert isinstance(found, Submitted)
    assert found.cluster


@VERSIONS
def test_I_5_every_refusal_is_definite_and_keeps_its_text(version: str) -> None:
    refused = [name for name in names(version) if name.startswith("sbatch-refused-")]
    assert refused
    for name in [*refused, "sbatch-two-memory-forms", "sbatch-long-comment", "sbatch-unknown-option", "sbatch-missing"]:
        recording = read(version, name)
        outcome = parse_submission(recording.status, recording.stdout, recording.stderr)
        assert outcome == Refused(recording.stderr.strip()), name


@VERSIONS
def test_J_1_a_dead_controller_is_ambiguous(version: str) -> None:
    recording = read(version, "sbatch-controller-dead")
    assert isinstance(parse_submission(recording.status, recording.stdout, recording.stderr), Ambiguous)


@VERSIONS
@pytest.mark.parametrize(
    ("name", "partition", "nodes"),
    [("estimate", "gpu-a", 1), ("estimate-two-nodes", "gpu-a", 2), ("estimate-partition-list", "gpu-a", 1)],
)
def test_H_1_H_13_estimates(version: str, name: str, partition: str, nodes: int) -> None:
    recording = read(version, name)
    start = int(recording.text.partition("to start at ")[2].split()[0])
    reply = parse_test_only(recording.status, recording.text, start - 30)
    assert (reply.start_in_seconds, reply.error, reply.partition, len(reply.nodes)) == (30, None, partition, nodes)


@VERSIONS
def test_H_5_H_11_refused_and_silent_estimates(version: str) -> None:
    refused = [name for name in names(version) if name.startswith("estimate-refused-")]
    assert refused
    for name in refused:
        recording = read(version, name)
        reply = parse_test_only(recording.status, recording.text, 0)
        assert (reply.answered, reply.start_in_seconds, reply.error) == (True, None, recording.stderr.strip()), name
    quiet, dead = read(version, "estimate-quiet"), read(version, "estimate-controller-dead")
    assert parse_test_only(quiet.status, quiet.text, 0).error
    assert not parse_test_only(dead.status, dead.text, 0).answered


@VERSIONS
def test_pings(version: str) -> None:
    answers = {name: read(version, name) for name in ("ping", "ping-controller-dead", "ping-controller-stopped")}
    assert [name for name, recording in answers.items() if parse_ping(recording.status, recording.text)] == ["ping"]


def test_D_14_no_command_asks_for_json_whose_shape_differs_by_version() -> None:
    commands = [squeue_arguments("name"), sacct_arguments(["1"], 0)]
    assert not any("json" in word or "yaml" in word for words in commands for word in words)
