"""No damage to a reply makes a live allocation look ended: it is read as it was, or not at all."""

from __future__ import annotations

import functools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_slurm.allocations.ledger import AllocationRecord, Ledger
from dagster_slurm.allocations.settings import SessionSettings, job_name_for
from dagster_slurm.allocations.snapshot import SessionSnapshot, build_snapshot
from dagster_slurm.errors import DagsterSlurmError
from dagster_slurm.remote.frames import parse_reply, posix_cksum
from dagster_slurm.remote.replies import read_observation
from dagster_slurm.slurm.replies import parse_listing
from dagster_slurm_tests import recordings
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.builders import token
from dagster_slurm_tests.counting import executed

pytestmark = pytest.mark.fault("F18")

NONCE = "0123456789abcdef0123456789abcdef"
SETTINGS = SessionSettings(session_id="recorded", session_dir="/base/sessions/recorded")
LIVE = [
    (version, name)
    for version in recordings.versions()
    for name in recordings.names(version)
    if name.startswith("squeue-live")
]


def frames(*sections: tuple[str, int, bytes]) -> bytes:
    """What a script prints: the frames of its sections, and the last one."""
    printed = b""
    for number, (name, status, body) in enumerate((*sections, ("done", 0, b"")), 1):
        head = f"{NONCE} {number} {name} {status}".encode()
        covered = head + b"\n" + body
        printed += b"\n<" + head + b">\n" + body
        printed += f"\n<{NONCE} {posix_cksum(covered)} {len(covered)}\n".encode()
    return printed


@functools.cache
def recorded_look(version: str, name: str) -> tuple[bytes, SessionSnapshot]:
    """A whole reply around a recorded listing, with a ledger that knows every job in it, and what it says."""
    recording = recordings.read(version, name)
    jobs = parse_listing(recording.status, recording.text).jobs
    records = [
        AllocationRecord(slurm_job_id=job.slurm_job_id, token=token(n), shape="s") for n, job in enumerate(jobs, 1)
    ]
    ledger = Ledger(
        session_id="recorded", job_name=job_name_for("recorded"), head=records[0], workers=tuple(records[1:])
    )
    reply = frames(
        ("ledger", 0, ledger.to_bytes()),
        ("traces", 0, b""),
        ("listing", recording.status, recording.text.encode()),
        ("facts", 0, b"1796127300\034no\034\034\034\034"),
    )
    found = look(reply)
    assert found is not None
    assert found.certain
    return reply, found


def look(reply: bytes) -> SessionSnapshot | None:
    """The snapshot that a reply gives; None for a typed error."""
    try:
        observation = read_observation(parse_reply(reply, NONCE), SETTINGS, "login")
    except DagsterSlurmError:
        return None
    return None if observation.ledger is None else build_snapshot(observation.ledger, observation)


@st.composite
def damaged(draw: st.DrawFn, reply: bytes) -> bytes:
    """The reply after one to three mishaps on its way."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(reply)))
        kind = draw(st.sampled_from(["cut", "change", "drop", "double", "noise", "swap"]))
        end = min(len(reply), at + draw(st.integers(1, 400)))
        if kind == "cut":
            reply = reply[:at]
        elif kind == "change":
            reply = reply[:at] + draw(st.binary(min_size=1, max_size=8)) + reply[at + 8 :]
        elif kind == "drop":
            reply = reply[:at] + reply[end:]
        elif kind == "double":
            reply = reply[:end] + reply[at:end] + reply[end:]
        elif kind == "swap":
            reply = reply[:at] + reply[end : 2 * end - at] + reply[at:end] + reply[2 * end - at :]
        else:
            noise = draw(st.sampled_from([b"\nLast login: today\n", b"\xff\x1f\x1e", b"squeue: error: x\n", b"\n"]))
            reply = reply[:at] + noise + reply[at:]
    return reply


@pytest.mark.parametrize(("version", "name"), LIVE)
@settings(max_examples=amount(300, 1500))
@given(data=st.data())
def test_damage_never_ends_a_live_allocation(version: str, name: str, data: st.DataObject) -> None:
    executed("F18", simulated=1)
    reply, whole = recorded_look(version, name)
    check(look(data.draw(damaged(reply))), whole)


def check(found: SessionSnapshot | None, whole: SessionSnapshot) -> None:
    """A typed error, or nothing known, or what the scheduler said."""
    if found is None:
        return
    if found.certain:
        # Fields that only later sections fill may be missing; what the scheduler said may not differ.
        assert scheduler_said(found) == scheduler_said(whole)
    else:
        assert all(allocation.state is None for allocation in found.allocations)


def scheduler_said(snapshot: SessionSnapshot) -> list[object]:
    """What comes from the listing, in order."""
    return [attrs.evolve(allocation, draining=None) for allocation in snapshot.allocations]


@pytest.mark.parametrize(("version", "name"), LIVE)
@pytest.mark.parametrize("changed", [1, 16, 32])
def test_a_reply_changed_at_any_byte_is_never_believed(version: str, name: str, changed: int) -> None:
    reply, whole = recorded_look(version, name)
    for at in range(changed % 3, len(reply), 3):
        check(look(reply[:at] + bytes([reply[at] ^ changed]) + reply[at + 1 :]), whole)


@pytest.mark.parametrize(("version", "name"), LIVE)
def test_a_reply_cut_at_any_byte_is_uncertain_or_whole(version: str, name: str) -> None:
    reply, whole = recorded_look(version, name)
    certain_from = None
    for length in range(0, len(reply), 7):
        found = look(reply[:length])
        if found is not None and found.certain:
            certain_from = certain_from or length
            check(found, whole)
    assert certain_from is not None
