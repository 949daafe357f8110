"""Whatever happens to a reply on its way, a section is the one that was sent, or it is not answered."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dagster_slurm.remote.frames import NOISE_LIMIT, Reply, Section, parse_reply, posix_cksum, quote
from dagster_slurm_tests.amount import amount

NONCE = "0f3c9a7be1d24856"
# Short alphabets, so that bodies often look like pieces of frames.
_pieces = st.sampled_from(
    [b"a", b"\n", b"<", b">", b" ", b"1", b"<" + NONCE.encode(), b"\n<" + NONCE.encode() + b" ", b"\xff"]
)
_bodies = st.one_of(st.lists(_pieces, max_size=8).map(b"".join), st.binary(max_size=40))
_sections = st.builds(Section, st.sampled_from(["a", "b", "trace.1"]), st.integers(0, 255), _bodies)
_noise = st.one_of(st.binary(max_size=20), st.sampled_from([b"Welcome\nto login1\n", b"\n<", b"\n\n\n"]))


def frame(number: int, section: Section) -> bytes:
    """A frame as the shell prints it."""
    head = f"{NONCE} {number} {section.name} {section.status}".encode()
    covered = head + b"\n" + section.body
    return b"\n<%s>\n%s\n<%s %d %d\n" % (head, section.body, NONCE.encode(), posix_cksum(covered), len(covered))


def reply_bytes(sections: list[Section], noise: list[bytes] | None = None) -> bytes:
    """A whole reply, with noise before each frame when given."""
    everything = [*sections, Section("done", 0, b"")]
    between = noise or [b""] * len(everything)
    pairs = zip(between, everything, strict=True)
    return b"".join(gap + frame(number, part) for number, (gap, part) in enumerate(pairs, start=1))


def speaks_the_truth(reply: Reply, sent: list[Section]) -> bool:
    """The reply is an unbroken beginning of what was sent, and complete only when it is all of it."""
    beginning = tuple(sent[: len(reply.sections)]) == reply.sections
    return beginning and (not reply.complete or len(reply.sections) == len(sent))


def looks_like_a_frame(body: bytes) -> bool:
    return NONCE.encode() in body


@given(st.lists(_sections, max_size=5))
def test_what_was_sent_arrives(sent: list[Section]) -> None:
    assume(not any(looks_like_a_frame(section.body) for section in sent))
    reply = parse_reply(reply_bytes(sent), NONCE)
    assert (list(reply.sections), reply.complete, reply.noise) == (sent, True, "")


@given(st.lists(_sections, max_size=5))
def test_a_body_with_the_nonce_in_it_is_never_misread(sent: list[Section]) -> None:
    assert speaks_the_truth(parse_reply(reply_bytes(sent), NONCE), sent)


@given(st.data(), st.lists(_sections, max_size=4))
def test_M_6_noise_around_frames_changes_nothing(data: st.DataObject, sent: list[Section]) -> None:
    assume(not any(looks_like_a_frame(section.body) for section in sent))
    noise = data.draw(st.lists(_noise, min_size=len(sent) + 1, max_size=len(sent) + 1))
    reply = parse_reply(reply_bytes(sent, noise) + data.draw(_noise), NONCE)
    assert (list(reply.sections), reply.complete) == (sent, True)


@settings(max_examples=amount(600, 5000))
@given(st.data(), st.lists(_sections, min_size=1, max_size=4))
def test_damage_anywhere_gives_the_truth_or_nothing(data: st.DataObject, sent: list[Section]) -> None:
    whole = reply_bytes(sent)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(start, min(len(whole), start + data.draw(st.sampled_from([1, 8, 1000])))))
        kind = data.draw(st.sampled_from(["flip", "cut", "remove", "double", "insert"]))
        if kind == "cut":
            whole = whole[:start]
        elif kind == "remove":
            whole = whole[:start] + whole[end:]
        elif kind == "double":
            whole = whole[:end] + whole[start:end] + whole[end:]
        elif kind == "insert":
            whole = whole[:start] + data.draw(_noise) + whole[start:]
        elif start < len(whole):
            whole = whole[:start] + bytes([whole[start] ^ data.draw(st.integers(1, 255))]) + whole[start + 1 :]
    assert speaks_the_truth(parse_reply(whole, NONCE), sent)


@given(st.lists(_sections, min_size=1, max_size=3))
def test_a_cut_at_every_byte_gives_the_truth_or_nothing(sent: list[Section]) -> None:
    whole = reply_bytes(sent)
    for length in range(len(whole)):
        reply = parse_reply(whole[:length], NONCE)
        assert not reply.complete
        assert speaks_the_truth(reply, sent)


@given(st.data(), st.lists(_sections, min_size=2, max_size=5))
def test_whole_frames_lost_doubled_or_moved(data: st.DataObject, sent: list[Section]) -> None:
    frames = [frame(number, part) for number, part in enumerate([*sent, Section("done", 0, b"")], start=1)]
    order = data.draw(st.lists(st.integers(0, len(frames) - 1), max_size=8))
    reply = parse_reply(b"".join(frames[index] for index in order), NONCE)
    assert speaks_the_truth(reply, sent)


def test_a_frame_that_arrives_twice_counts_once() -> None:
    sent = [Section("a", 0, b"1"), Section("a", 0, b"1")]
    frames = [frame(1, sent[0]), frame(1, sent[0]), frame(2, sent[1]), frame(3, Section("done", 0, b""))]
    reply = parse_reply(b"".join(frames), NONCE)
    assert (list(reply.sections), reply.complete) == (sent, True)


def test_a_section_behind_a_damaged_one_of_the_same_name_is_not_taken_for_it() -> None:
    frames = reply_bytes([Section("a", 0, b"first"), Section("a", 0, b"second")]).replace(b"first", b"f1rst")
    reply = parse_reply(frames, NONCE)
    assert reply.section("a") is None
    assert not reply.complete


def test_noise_is_the_tail_of_what_is_outside_frames_and_of_standard_error() -> None:
    output = b"banner\n" + reply_bytes([Section("a", 0, b"secret")]) + b"goodbye\xff"
    reply = parse_reply(output, NONCE, b"module: not found\n")
    assert reply.noise == "banner\ngoodbye\ufffd\nmodule: not found"
    assert parse_reply(b"", NONCE, b"x" * 10_000).noise == "x" * NOISE_LIMIT


@settings(max_examples=amount(30, 200))
@given(st.one_of(st.binary(max_size=2000), st.integers(0, 300_000).map(lambda size: b"\xa5\x00\x17" * (size // 3))))
def test_the_checksum_is_the_one_of_cksum(data: bytes) -> None:
    printed = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout
    assert printed.decode() == f"{posix_cksum(data)} {len(data)}\n"


_texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30)


@settings(max_examples=amount(40, 300))
@given(st.lists(st.one_of(_texts, st.text("'\"\\$`!*? \n~#-;&|<>(){}[]=", max_size=12)), min_size=1, max_size=6))
def test_quoted_words_reach_a_command_unchanged(values: list[str]) -> None:
    script = "printf '%s\\0' " + " ".join(quote(value) for value in values)
    printed = subprocess.run(["/bin/sh", "-s"], input=script.encode(), capture_output=True, check=True).stdout
    assert printed.decode().split("\0")[:-1] == values


def test_a_nul_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")


def test_quoting_leaves_plain_words_readable() -> None:
    assert quote("/opt/slurm/bin") == "/opt/slurm/bin"
    assert re.fullmatch(r"'.*'", quote("a b"))
