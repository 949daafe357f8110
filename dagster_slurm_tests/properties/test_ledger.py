"""Laws of the stored ledger: round trip, unknown keys, damage at any byte.

The file has no checksum of its own: a digit or letter changed inside a value reads as another value. What notices
that is the checksum of a commit, taken over the bytes that were observed: ``test_a_changed_byte_changes_the_sum``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.ledger import AllocationRecord, Ledger, OpenSubmission, flat_json, read_ledger
from dagster_slurm.errors import LedgerDamaged, LedgerTooNew
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.counting import executed

#: How long an example takes depends on what else the machine does.
law = settings(max_examples=amount(100, 1000))

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
tokens = st.text("0123456789abcdef", min_size=32, max_size=32)
times = st.integers(0, 2**33)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | names, lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
shapes = st.builds(
    EffectiveShape, partition=st.none() | st.just("gpu"), nodes=st.integers(1, 4), gpus_per_node=st.none() | st.just(2)
)


def extras(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    """Keys that this version does not know, as a later one might write them."""
    known = {field.name for field in attrs.fields(cls)} | {"schema_version"}
    return st.dictionaries(names.filter(lambda key: key not in known), values, max_size=2)


@st.composite
def records(draw: st.DrawFn, job_id: str) -> AllocationRecord:
    """A record of that job."""
    return AllocationRecord(
        slurm_job_id=job_id,
        token=draw(tokens),
        shape=draw(names),
        intent=draw(st.none() | names),
        submitted_at=draw(st.none() | times),
        drain_deadline=draw(st.none() | times),
        absent_since=draw(st.none() | times),
        final_state=draw(st.none() | st.sampled_from(["ENDED", "FAILED", "TIMEOUT"])),
        ended_at=draw(st.none() | times),
        extra=draw(extras(AllocationRecord)),
    )


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Any ledger that this library could have written."""
    ids = iter([str(n) for n in range(1, 20)])
    some = lambda most: tuple(draw(records(next(ids))) for _ in range(draw(st.integers(0, most))))  # noqa: E731
    head, successor = some(1), some(1)
    opened = draw(st.lists(tokens, unique=True, max_size=3))
    used = draw(st.lists(shapes, max_size=2))
    return Ledger(
        session_id=draw(names),
        job_name=draw(names),
        last_commit=draw(st.none() | tokens),
        head=head[0] if head else None,
        successor=successor[0] if successor else None,
        predecessors=some(2),
        workers=some(3),
        head_template=draw(st.none() | names),
        worker_template=draw(st.none() | names),
        worker_submissions={
            token: OpenSubmission(
                token=token,
                role=draw(st.sampled_from(["head", "successor", "worker"])),
                intent=draw(st.none() | names),
                shape=draw(names),
                prepared_at=draw(times),
                dated=draw(st.booleans()),
                extra=draw(extras(OpenSubmission)),
            )
            for token in opened
        },
        revoked_tokens=tuple(draw(st.lists(tokens, max_size=3))),
        election=draw(st.none() | st.dictionaries(names, values, max_size=2)),
        failed_leaders=draw(st.dictionaries(names, st.integers(0, 9), max_size=2)),
        shapes={shape.digest: shape for shape in used},
        extra=draw(extras(Ledger)),
    )


def read(data: bytes) -> Ledger:
    return read_ledger(data, path="allocation.json")


def unknown_keys(ledger: Ledger) -> list[dict[str, Any]]:
    """Everything in a ledger that this version does not know."""
    parts = [*ledger.records(), *ledger.worker_submissions.values()]
    return [dict(ledger.extra), *(dict(part.extra) for part in parts if part.extra)]


@law
@given(ledgers())
def test_round_trip(ledger: Ledger) -> None:
    again = read(ledger.to_bytes())
    assert again == ledger
    assert again.to_bytes() == ledger.to_bytes()


@law
@given(ledgers(), st.integers(0, 2**33))
def test_every_edit_keeps_unknown_keys(ledger: Ledger, now: int) -> None:
    before = unknown_keys(ledger)
    edits = [
        ledger.map_records(lambda record: attrs.evolve(record, drain_deadline=now)),
        ledger.with_submission(
            OpenSubmission(token="f" * 33, role="worker", intent="k", shape="s", prepared_at=now, dated=True),
            EffectiveShape(),
        ),
        ledger.without_unused_shapes(),
        *(ledger.with_record(record.slurm_job_id, final_state="FAILED") for record in ledger.records()),
    ]
    for edited in edits:
        assert unknown_keys(read(edited.to_bytes())) == before
    for token, submission in ledger.worker_submissions.items():
        adopted = ledger.with_adopted(token, "100", now)
        moved = adopted.record("100")
        assert moved is not None
        assert moved.extra == submission.extra
        assert adopted.extra == ledger.extra
        dropped = ledger.without_submission(token)
        assert dropped.extra == ledger.extra
        assert token in dropped.revoked_tokens
    shorter, archived = ledger.without_old_records(now)
    kept = {record.slurm_job_id: record for record in (*shorter.records(), *archived)}
    assert kept == {record.slurm_job_id: record for record in ledger.records()}
    assert all(flat_json(record).items() >= record.extra.items() for record in archived)


@pytest.mark.fault("F11")
@law
@given(ledgers(), st.data())
def test_a_ledger_cut_at_any_byte_is_damaged(ledger: Ledger, data: st.DataObject) -> None:
    executed("F11", simulated=1)
    whole = ledger.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        assert read(whole[:cut]) == ledger, "only the last newline may be missing"
        assert cut == len(whole) - 1
    except LedgerDamaged:
        pass


@pytest.mark.fault("F11")
@law
@given(ledgers(), st.data())
def test_a_ledger_filled_with_zeros_from_any_byte_on_is_damaged(ledger: Ledger, data: st.DataObject) -> None:
    executed("F11", simulated=1)
    whole = ledger.to_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, len(whole) - start))
    zeroed = whole[:start] + b"\0" * length + whole[start + length :]
    try:
        read(zeroed)
    except LedgerDamaged:
        return
    raise AssertionError(f"zeros from {start} on were read as a ledger")


def known_shape(ledger: Ledger) -> Any:
    """What a reader relies on: which records and submissions there are and what is said of each."""
    parts = [*ledger.records(), *ledger.worker_submissions.values()]
    return [
        [{k: type(v) for k, v in flat_json(part).items() if k not in part.extra} for part in parts],
        (ledger.head is None, ledger.successor is None, len(ledger.predecessors), len(ledger.workers)),
        (len(ledger.revoked_tokens), ledger.election is None, len(ledger.failed_leaders)),
    ]


@pytest.mark.fault("F11")
@law
@given(ledgers(), st.data())
def test_one_changed_byte_is_damage_or_another_value_of_the_same_kind(ledger: Ledger, data: st.DataObject) -> None:
    """Nothing that a record says gets lost: no record vanishes, no deadline becomes unsaid, no type changes."""
    executed("F11", simulated=1)
    whole = bytearray(ledger.to_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))
    whole[place] = byte
    try:
        found = read(bytes(whole))
    except (LedgerDamaged, LedgerTooNew):
        return
    assert known_shape(found) == known_shape(ledger)


@law
@given(ledgers(), st.data())
def test_a_changed_byte_changes_the_sum(ledger: Ledger, data: st.DataObject) -> None:
    """What reads as another value is caught by the commit: it compares the checksum of the bytes that were observed."""
    whole = bytearray(ledger.to_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    before = hashlib.sha256(whole).hexdigest()
    whole[place] ^= data.draw(st.integers(1, 255))
    assert hashlib.sha256(whole).hexdigest() != before


@law
@given(
    st.binary(max_size=60) | st.recursive(values, lambda v: st.dictionaries(names, v)).map(json.dumps).map(str.encode)
)
def test_anything_else_is_a_typed_error(data: bytes) -> None:
    try:
        read(data)
    except LedgerDamaged:
        return
    raise AssertionError("read as a ledger")
