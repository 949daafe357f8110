"""The ledger as a value, and what is no ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.ledger import Ledger, read_ledger
from dagster_slurm.errors import LedgerDamaged, LedgerTooNew
from dagster_slurm_tests.builders import HEAD_SHAPE, NOW, WORKER_SHAPE, head, ledger, record, submission, token

PATH = "ada@login:/base/sessions/run-1/allocation.json"

FULL = ledger(
    record(7, drain_deadline=NOW + 5, absent_since=NOW, extra={"note": ["kept"]}),
    record(8, final_state="FAILED", ended_at=NOW),
    opened=(submission(9, extra={"colour": "blue"}),),
    successor=head(2),
    predecessors=(head(3, final_state="TIMEOUT", ended_at=NOW - 5),),
    revoked_tokens=(token(50),),
    election={"slurm_job_id": "7", "nonce": "ab"},
    failed_leaders={"4": 2},
    extra={"future": {"deep": 1}},
)


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The full ledger's bytes with a change made to the document."""
    document = json.loads(FULL.to_bytes())
    change(document)
    return json.dumps(document).encode()


def test_what_is_written_is_read_back_equal() -> None:
    assert read_ledger(FULL.to_bytes(), path=PATH) == FULL
    assert read_ledger(Ledger(session_id="s", job_name="j").to_bytes(), path=PATH) == Ledger(
        session_id="s", job_name="j"
    )


def test_it_is_ascii_with_one_line_for_each_key() -> None:
    lines = FULL.to_bytes().decode("ascii").splitlines()
    assert (lines[0], lines[-1]) == ("{", "}")
    assert len(lines) == 2 + len(json.loads(FULL.to_bytes()))


def test_a_newer_schema_is_refused_by_its_own_error() -> None:
    with pytest.raises(LedgerTooNew, match=r"newer version \(schema 2, this one reads 1\)"):
        read_ledger(changed(lambda d: d.update(schema_version=2)), path=PATH)


def _drop(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document.pop(key)


def _set(*where: Any, to: Any) -> Callable[[dict[str, Any]], Any]:
    def change(document: Any) -> None:
        for step in where[:-1]:
            document = document[step]
        document[where[-1]] = to

    return change


DAMAGE: list[Callable[[dict[str, Any]], Any]] = [
    *(_drop(key) for key in json.loads(Ledger(session_id="s", job_name="j").to_bytes())),
    _set("schema_version", to=True),
    _set("schema_version", to="1"),
    _set("schema_version", to=0),
    _set("schema_version", to=None),
    _set("session_id", to=None),
    _set("job_name", to=5),
    _set("last_commit", to=5),
    _set("worker_template", to=[]),
    _set("head", to=[]),
    _set("head", to="1"),
    _set("workers", to={}),
    _set("workers", to=""),
    _set("workers", to=[None]),
    _set("workers", 0, to="7"),
    _set("predecessors", to={}),
    _set("revoked_tokens", to="abc"),
    _set("revoked_tokens", to=[5]),
    _set("election", to="7"),
    _set("election", to=[]),
    _set("failed_leaders", to=[]),
    _set("failed_leaders", "4", to="2"),
    _set("failed_leaders", "4", to=True),
    _set("shapes", to=[]),
    _set("shapes", WORKER_SHAPE.digest, to=[]),
    _set("shapes", WORKER_SHAPE.digest, to={"colour": "blue"}),
    _set("shapes", WORKER_SHAPE.digest, to={"nodes": 0}),
    _set("worker_submissions", to=[]),
    _set("worker_submissions", token(9), to=None),
    _set("worker_submissions", token(9), "token", to=token(10)),
    _set("worker_submissions", token(9), "role", to="hero"),
    _set("worker_submissions", token(9), "role", to=None),
    _set("worker_submissions", token(9), "dated", to=None),
    _set("worker_submissions", token(9), "dated", to=1),
    _set("worker_submissions", token(9), "prepared_at", to=None),
    _set("worker_submissions", token(9), "prepared_at", to=False),
    _set("workers", 0, "slurm_job_id", to=7),
    _set("workers", 0, "slurm_job_id", to=""),
    _set("workers", 0, "slurm_job_id", to=None),
    _set("workers", 0, "token", to=None),
    _set("workers", 0, "shape", to=""),
    _set("workers", 0, "intent", to=""),
    _set("workers", 0, "intent", to=3),
    _set("workers", 0, "drain_deadline", to="soon"),
    _set("workers", 0, "drain_deadline", to=1.5),
    _set("workers", 0, "submitted_at", to=True),
    _set("workers", 0, "final_state", to=False),
    _set("workers", 0, "slurm_job_id", to="8"),
    _set("workers", 0, "slurm_job_id", to="1"),
    *(
        (lambda name: lambda d: d["workers"][0].pop(name))(field.name)
        for field in attrs.fields(type(record(7)))
        if field.name != "extra"
    ),
    *(
        (lambda name: lambda d: d["worker_submissions"][token(9)].pop(name))(field.name)
        for field in attrs.fields(type(submission(9)))
        if field.name != "extra"
    ),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_a_typed_error_and_nothing_is_guessed(damage: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(LedgerDamaged, match="cannot be read as a ledger") as raised:
        read_ledger(changed(damage), path=PATH)
    assert PATH in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"7", b"\0" * 40, b"\xff{}", b"[" * 100_000, b'{"a":1}x'])
def test_what_is_no_document_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(LedgerDamaged):
        read_ledger(data, path=PATH)


def test_an_edit_finds_a_record_wherever_it_is_kept() -> None:
    for job_id in ("1", "2", "3", "7", "8"):
        edited = FULL.with_record(job_id, drain_deadline=NOW + 99)
        assert [r.slurm_job_id for r in edited.records() if r.drain_deadline == NOW + 99] == [job_id]
    assert FULL.with_record("999", drain_deadline=1) == FULL


def test_who_leads() -> None:
    assert [job_id for job_id in ("1", "2", "3", "7", "8", "9") if FULL.leads(job_id)] == ["1", "2", "7"]
    bare = Ledger(session_id="s", job_name="j")
    assert not bare.leads("1")
    assert bare.record("1") is None


def test_an_adopted_submission_keeps_its_unknown_keys() -> None:
    adopted = FULL.with_adopted(token(9), "9", NOW).record("9")
    assert adopted is not None
    assert adopted.extra == {"colour": "blue"}


def test_the_first_head_has_no_predecessor() -> None:
    opened = submission(1, role="head", shape=HEAD_SHAPE.digest, intent=None, dated=False)
    adopted = ledger(head=None, opened=(opened,)).with_adopted(token(1), "1", NOW)
    assert adopted.head == head(1)
    assert adopted.predecessors == ()
