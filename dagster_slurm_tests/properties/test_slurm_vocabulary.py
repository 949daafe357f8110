"""Properties of the vocabulary: nothing raises on any reply, damage is never read as another job."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.durations import parse_time_limit, parse_walltime, render_time_limit
from dagster_slurm.slurm.extra_options import check_extra_options
from dagster_slurm.slurm.hostlists import expand_hostlist
from dagster_slurm.slurm.options import sbatch_arguments
from dagster_slurm.slurm.replies import (
    parse_accounting,
    parse_listing,
    parse_ping,
    parse_submission,
    parse_test_only,
)
from dagster_slurm.slurm.states import StateClass, canonical_state, state_class
from dagster_slurm.slurm.tres import gpus_per_node_requested, parse_tres, total_gpus
from dagster_slurm_tests.amount import amount

# Timing decides nothing here: the machine may be busy.
bounded = settings(max_examples=amount(100, 1000))

# Any text, any bytes as the shell decodes them, and text made of the pieces that the parsers look for.
PIECES = ["\x1f", "\x1e", "\n", ":", "-", ",", "=", "[", "]", "0", "12", "RUNNING", "error", "gres/gpu", "gres:gpu"]
PIECES += ["sbatch: Job 1 to start at ", "Submitted batch job ", "CANCELLED by ", "+", "@", "%", "٣", "\ud800", "\x00"]
REPLIES = st.one_of(
    st.text(),
    st.binary().map(lambda data: data.decode("utf-8", errors="replace")),
    st.lists(st.sampled_from(PIECES)).map("".join),
)
STATUSES = st.integers(0, 255)
SECONDS = st.integers(0, 10**9 - 1)
LINE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20)
FREE_TEXT = st.text(st.characters(exclude_characters="\x1e\x1f", exclude_categories=["Cs"]), max_size=20)


def refused_field(action: Callable[[], object]) -> str | None:
    """The field that a refusal names; None when the action was not refused."""
    try:
        action()
    except ConfigurationError as error:
        return error.field or "no field"
    return None


@bounded
@given(STATUSES, REPLIES, REPLIES, st.integers(0, 2**40))
def test_no_reply_makes_a_parser_raise(status: int, text: str, other: str, clock: int) -> None:
    parse_submission(status, text, other)
    parse_ping(status, text)
    reply = parse_test_only(status, text, clock)
    assert (reply.start_in_seconds is None) == (reply.error is not None)
    assert reply.start_in_seconds is None or reply.start_in_seconds >= 0
    listing = parse_listing(status, text)
    assert listing.answered == (listing.error is None) == (listing.fault is None)
    assert listing.answered or not listing.jobs
    accounting = parse_accounting(status, text)
    assert accounting.answered == (accounting.error is None)
    assert accounting.answered or not accounting.rows


@bounded
@given(REPLIES)
def test_no_word_makes_a_parser_raise(text: str) -> None:
    walltime = parse_walltime(text)
    assert walltime is None or walltime >= 0
    nodes = expand_hostlist(text)
    assert all(nodes)
    assert len(set(nodes)) == len(nodes)
    gpus = total_gpus(parse_tres(text))
    assert gpus is None or gpus >= 0
    requested = gpus_per_node_requested(text)
    assert requested is None or requested >= 0


@bounded
@given(REPLIES)
def test_every_state_has_one_spelling_and_a_class(text: str) -> None:
    word = canonical_state(text)
    if word is None:
        return
    assert word
    assert isinstance(state_class(word), StateClass)
    assert canonical_state(word) == word


def slurm_prints(seconds: int) -> str:
    """A duration as squeue writes it, without the code under test."""
    days, hours, minutes, rest = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@bounded
@given(SECONDS)
def test_printed_walltimes_round_trip(seconds: int) -> None:
    assert parse_walltime(slurm_prints(seconds)) == seconds


@bounded
@given(SECONDS)
def test_rendered_time_limits_round_trip(seconds: int) -> None:
    assert parse_time_limit(render_time_limit(seconds)) == (seconds or None)


@bounded
@given(REPLIES)
def test_a_time_limit_is_read_or_refused_with_its_field(text: str) -> None:
    refused = refused_field(lambda: parse_time_limit(text, field="f"))
    if refused is not None:
        assert refused == "f"
        return
    seconds = parse_time_limit(text)
    assert seconds is None or seconds > 0
    assert parse_time_limit(render_time_limit(seconds)) == seconds


@st.composite
def host_lists(draw: st.DrawFn) -> tuple[str, set[str]]:
    """A host list, with the names that it stands for by a naive expansion."""
    entries, names = [], set()
    for _ in range(draw(st.integers(1, 4))):
        prefix = draw(st.sampled_from(["n", "node-", "gpu-a-", "c1-", "rack.x"]))
        suffix = draw(st.sampled_from(["", "-ib"]))
        if draw(st.booleans()):
            entries.append(prefix + "7" + suffix)
            names.add(prefix + "7" + suffix)
            continue
        width = draw(st.integers(1, 4))
        parts = []
        for _ in range(draw(st.integers(1, 3))):
            low = draw(st.integers(0, 120))
            high = low + draw(st.integers(0, 15))
            parts.append(f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}")
            names |= {f"{prefix}{number:0{width}}{suffix}" for number in range(low, high + 1)}
        entries.append(f"{prefix}[{','.join(parts)}]{suffix}")
    return ",".join(entries), names


@bounded
@given(host_lists())
def test_host_lists_expand_as_a_naive_expansion_does(case: tuple[str, set[str]]) -> None:
    text, names = case
    assert set(expand_hostlist(text)) == names
    assert len(expand_hostlist(text)) == len(names)


@st.composite
def rows(draw: st.DrawFn, job_id: int) -> str:
    """One squeue row whose every column bears the id of its job, so that a shifted column shows."""
    free = draw(FREE_TEXT)
    state = draw(st.sampled_from(["RUNNING", "PENDING", "COMPLETED"]))
    columns = [str(job_id), state, f"{job_id}:00", f"{job_id}:00", str(job_id), str(job_id), str(job_id), f"n{job_id}"]
    columns += [f"cpu={job_id}", f"gres:gpu:{job_id}", f"partition{job_id}", f"qos{job_id}", f"account{job_id}"]
    columns += [f"user{job_id}", f"name{job_id}", f"reason{job_id}", f"command{job_id}", f"comment{job_id} {free}"]
    return "\x1f".join([*columns, str(job_id), "\x1e\n"])


LISTINGS = st.lists(st.integers(11, 55), min_size=1, max_size=4, unique=True).flatmap(
    lambda ids: st.tuples(*(rows(job_id) for job_id in ids)).map("".join)
)


def assert_no_shifted_column(text: str) -> None:
    for job in parse_listing(0, text).jobs:
        number = job.slurm_job_id
        assert job.name == f"name{number}"
        assert (job.partition, job.account, job.user) == (f"partition{number}", f"account{number}", f"user{number}")
        assert (job.tres, job.tres_per_node, job.nodes) == (f"cpu={number}", f"gres:gpu:{number}", (f"n{number}",))
        assert job.command == f"command{number}"
        assert job.comment is not None
        assert job.comment.startswith(f"comment{number}")


@bounded
@given(LISTINGS)
def test_a_whole_listing_has_every_job_and_no_shifted_column(text: str) -> None:
    assert len(parse_listing(0, text).jobs) == text.count("\x1e")
    assert_no_shifted_column(text)


@bounded
@given(LISTINGS, st.data())
def test_a_lost_separator_never_shifts_a_column(text: str, data: st.DataObject) -> None:
    places = [place for place, character in enumerate(text) if character in "\x1f\x1e"]
    lost = data.draw(st.sampled_from(places))
    damaged = text[:lost] + text[lost + 1 :]
    assert not parse_listing(0, damaged).answered


@bounded
@given(LISTINGS, st.data())
def test_a_listing_that_lost_a_stretch_with_separators_is_not_believed_or_not_shifted(
    text: str, data: st.DataObject
) -> None:
    places = [place for place, character in enumerate(text) if character == "\x1f"]
    start, end = sorted(data.draw(st.tuples(st.sampled_from(places), st.sampled_from(places))))
    assert_no_shifted_column(text[:start] + text[end:])


@bounded
@given(LISTINGS, st.data())
def test_an_added_separator_never_shifts_a_column(text: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text) - 2))
    damaged = text[:place] + data.draw(st.sampled_from(["\x1f", "\x1f\x1f", "\x1e"])) + text[place:]
    assert not parse_listing(0, damaged).answered


@bounded
@given(LISTINGS, st.data())
def test_a_cut_listing_is_not_believed(text: str, data: st.DataObject) -> None:
    ends = [place for place in range(1, len(text)) if "\x1f" in text[:place].rpartition("\x1e")[2]]
    assert not parse_listing(0, text[: data.draw(st.sampled_from(ends))]).answered


NAMES = LINE.filter(lambda text: text.strip())
SHAPES = st.builds(
    dict,
    partition=st.none() | NAMES,
    account=st.none() | NAMES,
    constraint=st.none() | NAMES,
    nodes=st.integers(1, 1000),
    gpus_per_node=st.none() | st.integers(0, 16) | st.sampled_from(["a100:2", "3", "v100:1,a100:1"]),
    cpus_per_task=st.none() | st.integers(1, 256),
    mem=st.none() | st.sampled_from(["8G", "500m", "0", "1TB"]),
    time_limit=st.none() | SECONDS.map(render_time_limit) | st.just("UNLIMITED"),
    extra_options=st.lists(st.sampled_from(["--exclusive", "--licenses=a:1", "-H"])).map(tuple),
    head_only=st.booleans(),
    drain_window_seconds=st.integers(0, 65_535),
    ray_resources=st.dictionaries(NAMES, st.floats(0, 1e6) | st.integers(0, 1000), max_size=3),
)


@bounded
@given(SHAPES)
def test_shapes_survive_json(fields: dict[str, Any]) -> None:
    shape = EffectiveShape(**fields)
    read = EffectiveShape.from_json(json.loads(json.dumps(shape.to_json())))
    assert (read, hash(read), read.digest) == (shape, hash(shape), shape.digest)


@bounded
@given(SHAPES, SHAPES)
def test_equal_digests_are_equal_shapes(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = EffectiveShape(**one), EffectiveShape(**other)
    assert (first == second) == (first.digest == second.digest)


@bounded
@given(SHAPES, SHAPES)
def test_a_fully_stated_config_does_not_depend_on_its_base(fields: dict[str, Any], base: dict[str, Any]) -> None:
    config = SlurmWorkerAllocationConfig(
        **fields, qos=None, reservation=None, mem_per_cpu=None, mem_per_gpu=None, nodelist=None, exclude=None,
        ray_start_args=None,
    )  # fmt: skip
    assert inherit(config, EffectiveShape(**base)) == inherit(config, None) == EffectiveShape(**fields)


@bounded
@given(SHAPES, NAMES, st.text(max_size=30), st.text(max_size=30))
def test_rendered_options_are_single_options_on_single_lines(
    fields: dict[str, Any], job_name: str, comment: str, output: str
) -> None:
    shape = EffectiveShape(**fields)

    def render() -> tuple[str, ...]:
        return sbatch_arguments(shape, job_name=job_name, comment=comment, output=output)

    refused = refused_field(render)
    if refused is not None:
        assert refused in {"job_name", "comment", "output"}
        return
    arguments = render()
    assert all(argument.startswith("-") for argument in arguments)
    assert all(len(argument.splitlines()) == 1 for argument in arguments)
    assert arguments.count("--parsable") == 1
    assert f"--output={output.replace('%', '%%')}" in arguments


@bounded
@given(st.text(st.sampled_from("-=JodHvx aexport jb-name")), st.booleans())
def test_extra_options_are_passed_or_refused_with_their_field(text: str, long: bool) -> None:
    option = ("--" if long else "") + text
    refused = refused_field(lambda: check_extra_options([option], "f"))
    if refused is not None:
        assert refused == "f"
        return
    assert option.startswith("-")
    name = option.lstrip("-").partition("=")[0]
    assert not (option.startswith("--") and name and "job-name".startswith(name))


@bounded
@given(st.timedeltas(min_value=datetime.timedelta(microseconds=1), max_value=datetime.timedelta(days=1000)))
def test_a_timedelta_is_never_shortened(limit: datetime.timedelta) -> None:
    shape = inherit(SlurmWorkerAllocationConfig(time_limit=limit), None)
    assert shape.time_limit_seconds == math.ceil(limit.total_seconds())


@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_is_nothing(nothing: str | None) -> None:
    assert parse_walltime(nothing) is None
    assert canonical_state(nothing) is None
    assert expand_hostlist(nothing) == ()
    assert dict(parse_tres(nothing)) == {}
