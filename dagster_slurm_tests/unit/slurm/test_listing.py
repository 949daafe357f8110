"""squeue's question and replies."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.replies import (
    ListedJob,
    Listing,
    ReplyFault,
    parse_listing,
    squeue_arguments,
    squeue_by_id_arguments,
)

DEFAULTS = {
    "id": "4242",
    "state": "RUNNING",
    "left": "9:52",
    "limit": "30:00",
    "submitted": "1796127290",
    "start": "1796127291",
    "count": "1",
    "nodes": "n1",
    "tres": "cpu=1,node=1",
    "per_node": "N/A",
    "partition": "gpu-a",
    "qos": "normal",
    "account": "acc",
    "user": "alice",
    "name": "wk",
    "reason": "None",
    "command": "/s/batch.sh",
    "comment": "(null)",
}


def row(**changes: str) -> str:
    """One row as squeue prints it for our format."""
    columns = {**DEFAULTS, **changes}
    return "\x1f".join([*columns.values(), columns["id"], "\x1e\n"])


def job(**changes: str) -> ListedJob:
    """The one job of a listing that has this row."""
    listing = parse_listing(0, row(**changes))
    assert listing.answered
    (found,) = listing.jobs
    return found


def test_the_question_names_everything_that_a_profile_could_change() -> None:
    arguments = squeue_arguments("wk")
    assert arguments[:5] == ("timeout", "-k", "2", "12", "squeue")
    assert {"-h", "--local", "--me", "-O"} <= set(arguments)
    assert arguments[arguments.index("-t") + 1] == "all"
    assert arguments[arguments.index("-n") + 1] == "wk"
    assert arguments[-1].count("\x1f") == len(arguments[-1].split(",")) == row().count("\x1f")
    by_id = squeue_by_id_arguments(["7", "8"])
    assert by_id[by_id.index("-j") + 1] == "7,8"
    assert [word for word in by_id if word not in ("-j", "7,8")] == [w for w in arguments if w not in ("-n", "wk")]


def test_I_1_a_given_cluster_replaces_the_local_one() -> None:
    arguments = squeue_arguments("wk", "alpha")
    assert "--clusters=alpha" in arguments
    assert "--local" not in arguments


def test_a_running_job_is_read_column_by_column() -> None:
    assert job(tres="cpu=2,gres/gpu=4", per_node="gres:gpu:2", nodes="n[1-2]", count="2") == ListedJob(
        slurm_job_id="4242",
        name="wk",
        state="RUNNING",
        reason=None,
        time_left_seconds=592,
        time_limit_seconds=1800,
        submitted_at=1796127290,
        expected_start_at=None,
        nodes=("n1", "n2"),
        requested_nodes=2,
        tres="cpu=2,gres/gpu=4",
        tres_per_node="gres:gpu:2",
        partition="gpu-a",
        qos="normal",
        account="acc",
        comment=None,
        command="/s/batch.sh",
        user="alice",
    )


def test_a_pending_job_has_a_planned_start_and_no_time_left() -> None:
    found = job(state="PENDING", left="30:00", start="1796130000", nodes="", reason="Resources")
    assert (found.time_left_seconds, found.expected_start_at, found.reason) == (None, 1796130000, "Resources")
    assert job(state="PENDING", start="N/A").expected_start_at is None


@pytest.mark.parametrize(
    ("status", "text", "fault"),
    [
        (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", ReplyFault.NO_ANSWER),
        (1, "slurm_load_jobs error: Socket timed out on send/recv operation", ReplyFault.NO_ANSWER),
        (124, "", ReplyFault.NO_ANSWER),
        (137, row(), ReplyFault.NO_ANSWER),
        (143, row(), ReplyFault.NO_ANSWER),
        (127, "timeout: failed to run command 'squeue': No such file or directory", ReplyFault.COMMAND_MISSING),
        (1, "squeue: error: No cluster 'x' known by database.", ReplyFault.ERROR),
    ],
)
def test_A_2_A_3_no_answer_is_no_listing(status: int, text: str, fault: ReplyFault) -> None:
    listing = parse_listing(status, text)
    assert (listing.answered, listing.jobs, listing.fault) == (False, (), fault)
    assert listing.error


def test_A_1_a_purged_id_is_an_answer() -> None:
    assert parse_listing(1, "slurm_load_jobs error: Invalid job id specified\n") == Listing(answered=True)


def test_A_8_a_refused_option_is_a_matter_of_configuration() -> None:
    text = "squeue: unrecognized option '--me'\nTry \"squeue --help\" for more information\n"
    assert parse_listing(1, text).fault is ReplyFault.USAGE


def test_B_8_a_requeued_job_is_pending_whatever_accounting_says() -> None:
    assert job(state="PENDING", reason="BeginTime", left="20:00").state == "PENDING"


def test_C_5_an_ended_job_has_no_reason_and_no_time_left() -> None:
    found = job(state="CANCELLED", reason="JobHeldUser", left="10:00", start="1796127291")
    assert (found.state, found.reason, found.time_left_seconds, found.expected_start_at) == (
        "CANCELLED",
        None,
        None,
        None,
    )
    assert job(state="NODE_FAIL", reason="NodeDown", left="19:58").time_left_seconds is None


def test_C_1_an_unfamiliar_or_held_state_passes_through() -> None:
    found = job(state="RESV_DEL_HOLD", reason="Reservation r1 was deleted", left="2:00:00")
    assert (found.state, found.reason, found.time_left_seconds) == ("RESV_DEL_HOLD", "Reservation r1 was deleted", None)
    assert job(state="HIBERNATED").state == "HIBERNATED"
    assert job(state="").state is None


def test_D_1_delimiters_and_line_breaks_in_free_text_shift_nothing() -> None:
    assert job(comment="tok:abc=1,x|y").comment == "tok:abc=1,x|y"
    listing = parse_listing(0, row(id="52", comment="a\nb") + row(id="53", name="two\nlines"))
    assert [(found.slurm_job_id, found.name, found.comment) for found in listing.jobs] == [
        ("52", "wk", "a\nb"),
        ("53", "two\nlines", None),
    ]


def test_D_2_blanks_in_a_name_and_empty_columns() -> None:
    found = job(name="wk two words", qos="", account="acc")
    assert (found.name, found.qos, found.account) == ("wk two words", None, "acc")


@pytest.mark.parametrize(
    "reason",
    [
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "ReqNodeNotAvail, UnavailableNodes:d[001-032],f[001-024]",
        "ReqNodeNotAvail, Reserved for maintenance",
    ],
)
def test_D_3_a_reason_is_one_text(reason: str) -> None:
    found = job(state="PENDING", reason=reason, nodes="")
    assert (found.reason, found.nodes) == (reason, ())


def test_D_5_a_row_with_a_wrong_number_of_columns_makes_nothing_certain() -> None:
    short = row().replace("\x1f", "", 1)
    listing = parse_listing(0, row(id="1") + short)
    assert (listing.answered, listing.jobs, listing.fault) == (False, (), ReplyFault.DAMAGED)


def test_a_row_that_lost_its_middle_and_ran_into_the_next_is_no_job() -> None:
    first, second = row(id="1"), row(id="2")
    for position in range(1, 18):
        head = "\x1f".join(first.split("\x1f")[:position])
        tail = "\x1f".join(second.split("\x1f")[position:])
        assert not parse_listing(0, f"{head}\x1f{tail}").answered


def test_a_reply_cut_inside_its_last_row_is_no_listing() -> None:
    whole = row(id="1") + row(id="2")
    for end in range(len(row(id="1")) + 2, len(whole) - 2):
        assert not parse_listing(0, whole[:end]).answered


def test_a_message_printed_into_a_row_is_no_job() -> None:
    assert not parse_listing(0, row(state="RUN\nsqueue: error: x\nNING")).answered


def test_D_10_ids_that_are_no_plain_number_are_no_allocations() -> None:
    text = "".join(row(id=job_id) for job_id in ("33_[2-3%1]", "33_1", "34+0", "34+1", "", "4٢", "50"))
    assert [found.slurm_job_id for found in parse_listing(0, text).jobs] == ["50"]


def test_D_12_a_heading_is_no_job() -> None:
    heading = row(**{key: key.upper() for key in DEFAULTS})
    listing = parse_listing(0, "CLUSTER: alpha\n" + heading + row())
    assert [found.slurm_job_id for found in listing.jobs] == ["4242"]


def test_D_13_a_field_that_this_squeue_does_not_know_is_a_matter_of_configuration() -> None:
    message = "squeue: error: Invalid job format specification: NoSuchField\n"
    short = row().replace("\x1fgpu-a", "", 1)
    assert parse_listing(0, message + short).fault is ReplyFault.USAGE
    assert parse_listing(0, message).fault is ReplyFault.USAGE


def test_E_1_a_job_without_a_limit_has_no_time_left() -> None:
    found = job(left="UNLIMITED", limit="UNLIMITED")
    assert (found.time_left_seconds, found.time_limit_seconds) == (None, None)


def test_M_6_a_banner_is_neither_a_job_nor_an_error() -> None:
    banner = "Welcome to the cluster\n  - be nice -\n\n"
    assert [found.slurm_job_id for found in parse_listing(0, banner + row()).jobs] == ["4242"]
    assert parse_listing(0, banner) == Listing(answered=True)


@pytest.mark.parametrize("text", ["squeue: error: plugin x not found\n", "The queue is down for maintenance.\n"])
def test_trouble_without_rows_is_no_empty_queue(text: str) -> None:
    assert not parse_listing(0, text).answered


def test_an_empty_queue_is_an_answer() -> None:
    assert parse_listing(0, "") == Listing(answered=True)
