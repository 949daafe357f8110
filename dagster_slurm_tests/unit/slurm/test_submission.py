"""What became of a submission, when a job could start, and whether the controller answers."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.replies import (
    Ambiguous,
    Refused,
    ReplyFault,
    Submitted,
    parse_ping,
    parse_submission,
    parse_test_only,
)

CLOCK = 1796127568


@pytest.mark.parametrize(
    ("stdout", "job_id", "cluster"),
    [
        ("50\n", "50", None),
        ("50;alpha\n", "50", "alpha"),
        ("Submitted batch job 60060368 on cluster alpha\n", "60060368", "alpha"),
        (
            "Submitted batch job 127652 estimates 2 SUs from allocation p. Estimated remaining SUs: 2306129\n"
            "JOBID PARTITION NAME\n127652 p wk\n",
            "127652",
            None,
        ),
        ("15786755", "15786755", None),
        ("Welcome\n\n4242\n", "4242", None),
        ("4242\n4242\n", "4242", None),
    ],
)
def test_I_1_I_3_the_id_is_found_by_its_own_form(stdout: str, job_id: str, cluster: str | None) -> None:
    assert parse_submission(0, stdout, "") == Submitted(job_id, cluster)


def test_H_4_an_id_in_a_message_of_the_site_is_no_id() -> None:
    message = "sbatch: NOTE: 12 GPU hours left; Submitted batch job 999 is an example\n"
    assert parse_submission(0, "50\n", message) == Submitted("50")
    assert isinstance(parse_submission(0, "", message), Ambiguous)


@pytest.mark.parametrize("stdout", ["", "\n", "0\n", "41\n42\n", "job 7 done\n", "-5\n", "٥\n"])
def test_I_7_success_without_exactly_one_id_is_ambiguous(stdout: str) -> None:
    assert isinstance(parse_submission(0, stdout, ""), Ambiguous)


@pytest.mark.parametrize(
    "stderr",
    [
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
        "and/or time limits)",
        "sbatch: error: Cannot find GPU specification\nsbatch: error: Batch job submission failed: Unspecified error",
        "sbatch: error: lua: Requesting memory by node is not supported. Use --mem-per-cpu.\n"
        "sbatch: error: cli_filter plugin terminated with error",
        "sbatch: error: Batch job submission failed: Pathname of a file, directory or other parameter too long",
    ],
)
def test_I_5_I_6_J_5_a_refusal_keeps_every_line(stderr: str) -> None:
    assert parse_submission(1, "", stderr + "\n") == Refused(stderr)


@pytest.mark.parametrize(
    "stderr",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Slurm backup controller in standby mode",
        "sbatch: error: Batch job submission failed: Unexpected message received",
        "sbatch: error: Batch job submission failed: Communication connection failure",
        "sbatch: error: Batch job submission failed: Connection reset by peer",
        "sbatch: error: Batch job submission failed: Protocol authentication error",
        "",
    ],
)
def test_J_1_a_lost_message_is_ambiguous(stderr: str) -> None:
    assert isinstance(parse_submission(1, "", stderr), Ambiguous)


@pytest.mark.parametrize("status", [124, 137, 130, 143])
def test_J_1_a_submission_that_was_stopped_is_ambiguous(status: int) -> None:
    assert isinstance(parse_submission(status, "", "sbatch: error: invalid partition"), Ambiguous)
    assert isinstance(parse_submission(status, "50\n", ""), Ambiguous)


@pytest.mark.parametrize("status", [1, 127, 255])
def test_a_failure_that_printed_an_id_is_ambiguous(status: int) -> None:
    # A wrapper of the site can submit and then fail by itself.
    assert isinstance(parse_submission(status, "50\n", "sbatch: error: x"), Ambiguous)


def test_a_missing_sbatch_is_a_refusal() -> None:
    assert isinstance(parse_submission(127, "", "sh: sbatch: not found"), Refused)


def test_a_usage_error_is_a_refusal() -> None:
    assert isinstance(parse_submission(255, "", "sbatch: error: Invalid --mem specification"), Refused)


@pytest.mark.parametrize(
    ("rest", "nodes", "partition"),
    [
        ("using 1 processors on nodes n1 in partition gpu-a", ("n1",), "gpu-a"),
        ("a using 1 processors on nodes a241 in partition shared", ("a241",), "shared"),
        ("on cluster beta a using 8 processors on nodes n[1-2] in partition p", ("n1", "n2"), "p"),
        ("using 2 processors on n[1,3]", ("n1", "n3"), None),
        ("using 1 processors on nodes n1", ("n1",), None),
        ("", (), None),
    ],
)
def test_H_1_H_2_H_13_every_wording_gives_the_start(rest: str, nodes: tuple[str, ...], partition: str | None) -> None:
    reply = parse_test_only(0, f"sbatch: Job 9 to start at {CLOCK + 60} {rest}".rstrip() + "\n", CLOCK)
    assert (reply.start_in_seconds, reply.error, reply.answered) == (60, None, True)
    assert (reply.nodes, reply.partition) == (nodes, partition)


def test_H_4_messages_before_the_estimate_are_no_error() -> None:
    message = "sbatch: NOTE: project p has 12 GPU hours left; Submitted batch job 999 is an example\n"
    reply = parse_test_only(0, f"{message}sbatch: Job 1 to start at {CLOCK}", CLOCK)
    assert (reply.start_in_seconds, reply.error) == (0, None)


@pytest.mark.parametrize(
    "text",
    [
        "allocation failure: Requested node configuration is not available",
        "sbatch: error: invalid partition specified: nosuch\nallocation failure: Invalid partition name specified",
        "allocation failure: Invalid qos specification",
        "allocation failure: Required partition not available (inactive or drain)",
        "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.",
    ],
)
def test_H_5_H_7_H_8_P_5_a_rejection_is_an_error_of_the_candidate(text: str) -> None:
    reply = parse_test_only(1, text + "\n", CLOCK)
    assert (reply.start_in_seconds, reply.error, reply.answered) == (None, text, True)


def test_H_11_silence_is_no_estimate() -> None:
    reply = parse_test_only(0, "", CLOCK)
    assert reply.start_in_seconds is None
    assert reply.error is not None
    assert "no start estimate" in reply.error


@pytest.mark.parametrize("status", [124, 137, 1])
def test_H_12_a_silent_controller_says_nothing_about_the_candidate(status: int) -> None:
    reply = parse_test_only(status, "allocation failure: Unable to contact slurm controller (connect failure)", CLOCK)
    assert (reply.answered, reply.start_in_seconds, reply.fault) == (False, None, ReplyFault.NO_ANSWER)


def test_a_missing_sbatch_says_nothing_about_the_candidate() -> None:
    assert not parse_test_only(127, "sbatch: not found", CLOCK).answered


def test_E_9_a_start_in_the_past_is_now() -> None:
    assert parse_test_only(0, f"sbatch: Job 1 to start at {CLOCK - 1} using", CLOCK).start_in_seconds == 0


@pytest.mark.parametrize("start", ["2026-12-01T09:00:00", "Unknown", "None"])
def test_E_7_a_time_without_a_zone_is_not_read(start: str) -> None:
    reply = parse_test_only(0, f"sbatch: Job 1 to start at {start} using 1 processors", CLOCK)
    assert reply.start_in_seconds is None
    assert reply.error is not None
    assert start in reply.error


@pytest.mark.parametrize(
    ("status", "text", "up"),
    [
        (0, "Slurmctld(primary) at vm is UP\n", True),
        (0, "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n", True),
        (1, "Slurmctld(primary) at vm is DOWN\n", False),
        (124, "Slurmctld(primary) at vm is UP\n", False),
        (127, "scontrol: not found", False),
        (0, "", False),
    ],
)
def test_ping(status: int, text: str, up: bool) -> None:
    assert parse_ping(status, text) is up
