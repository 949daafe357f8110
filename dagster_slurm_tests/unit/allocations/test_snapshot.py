"""What a policy sees: nothing guessed, None for what was not observed."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.slurm.reasons import ReasonCategory
from dagster_slurm.slurm.replies import Listing
from dagster_slurm_tests.builders import (
    KEY,
    NOW,
    WORKER_SHAPE,
    head,
    job,
    ledger,
    look,
    ray_nodes,
    record,
    silent,
    snapshot,
    submission,
)


def worker(observation: Observation) -> AllocationSnapshot:
    """The one worker of an observation."""
    (found,) = snapshot(observation).workers()
    return found


def shaped(**changes: Any) -> Any:
    """Books with one worker of such a shape."""
    shape = attrs.evolve(WORKER_SHAPE, **changes)
    books = ledger(record(7, shape=shape.digest))
    return attrs.evolve(books, shapes={**books.shapes, shape.digest: shape})


# -- the session -----------------------------------------------------------------------------------


def test_the_session_as_a_whole() -> None:
    books = ledger(
        record(7),
        record(8, intent=None),
        successor=head(2),
        predecessors=(head(3, final_state="TIMEOUT", ended_at=NOW - 5),),
        opened=(submission(9),),
    )
    seen = snapshot(look(books, job(7), job(8), job(2, "PENDING"), closing=True))
    assert [(a.slurm_job_id, a.role) for a in seen.allocations] == [
        ("1", "head"),
        ("3", "predecessor"),
        ("2", "successor"),
        ("7", "worker"),
        ("8", "worker"),
    ]
    assert seen.session_id == "run-1"
    assert seen.observed_at == NOW
    assert seen.certain
    assert seen.closing
    assert seen.head == seen.allocations[0]
    assert seen.successor == seen.allocations[2]
    assert seen.successor.committed is True
    assert seen.unresolved == 1
    assert [a.slurm_job_id for a in seen.workers()] == ["7", "8"]
    assert [a.slurm_job_id for a in seen.workers(KEY)] == ["7"]


def test_the_head_is_never_none_its_state_can_be() -> None:
    assert snapshot(silent(ledger())).head.slurm_job_id == "1"
    assert snapshot(silent(ledger())).head.state is None
    coming = ledger(head=None, opened=(submission(1, role="head", intent=None),))
    unborn = snapshot(look(coming, listing=Listing(answered=True))).head
    assert (unborn.slurm_job_id, unborn.role, unborn.state, unborn.committed) == (None, "head", None, None)


def test_J_1_a_job_found_by_its_token_is_shown_at_once() -> None:
    seen = snapshot(look(ledger(opened=(submission(7),)), job(7, "PENDING")))
    assert [a.slurm_job_id for a in seen.workers(KEY)] == ["7"]
    assert seen.unresolved == 0
    assert seen.unrecorded == ()


def test_live_jobs_of_our_name_that_no_record_explains_are_named() -> None:
    strangers = [
        job(n, state, comment=None, command=None) for n, state in ((50, "RUNNING"), (51, "FAILED"), (52, None))
    ]
    assert snapshot(look(ledger(record(7)), job(7), *strangers)).unrecorded == ("50", "52")


# -- the scheduler's facts -------------------------------------------------------------------------


def test_a_running_worker() -> None:
    found = worker(look(ledger(record(7)), job(7, time_left_seconds=592, tres="cpu=4,node=2", requested_nodes=2)))
    assert found == AllocationSnapshot(
        slurm_job_id="7",
        role="worker",
        state="RUNNING",
        committed=True,
        time_left_seconds=592,
        time_limit_seconds=3600,
        partition="main",
        requested_nodes=2,
        requested_gpus_per_node=0,
        tres="cpu=4,node=2",
        granted_gpus=0,
        nodes=("n7",),
        intent=KEY,
        submitted_at=NOW - 600,
    )


def test_a_pending_worker() -> None:
    row = job(7, "PENDING", reason="Priority", expected_start_at=NOW + 50, time_left_seconds=3600, nodes=("n9",))
    found = worker(look(ledger(record(7)), row))
    assert (found.state, found.reason, found.committed) == ("PENDING", "Priority", True)
    assert (found.expected_start_at, found.time_limit_seconds) == (NOW + 50, 3600)
    assert (found.time_left_seconds, found.nodes, found.granted_gpus) == (None, (), None)
    assert (found.ready, found.draining) == (False, False)


@pytest.mark.parametrize(
    "row",
    [
        job(7, "CANCELLED", reason="JobHeldUser", time_left_seconds=600, expected_start_at=NOW),
        job(7, "NODE_FAIL", reason="NodeDown", time_left_seconds=1198, nodes=("n3",)),
    ],
)
def test_C_4_C_5_what_an_ended_row_still_says_is_ignored(row: Any) -> None:
    found = worker(look(ledger(record(7)), row))
    assert found.state == row.state
    assert found.committed is False
    assert (found.reason, found.time_left_seconds, found.time_limit_seconds) == (None, None, None)
    assert (found.expected_start_at, found.tres, found.nodes) == (None, None, ())
    assert (found.ready, found.draining, found.granted_gpus) == (False, None, None)


def test_what_was_asked_for_is_known_without_the_scheduler() -> None:
    books = shaped(nodes=3, gpus_per_node="a100:2")
    for observation in (silent(books), look(books)):
        found = worker(observation)
        assert (found.requested_nodes, found.requested_gpus_per_node) == (3, 2)
        assert (found.partition, found.tres, found.granted_gpus) == (None, None, None)


def test_a_record_without_its_shape_asks_for_nothing_known() -> None:
    found = worker(silent(ledger(record(7, shape="gone"))))
    assert (found.requested_nodes, found.requested_gpus_per_node) == (None, None)


# -- GPUs ------------------------------------------------------------------------------------------

GPU_CASES = [
    # F-1: total and typed entries together, in both orders
    ("cpu=1,mem=100M,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2", "gres:gpu:2", {"gpus_per_node": 2}, 2, 2),
    ("billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,mem=100M,node=1", "gres:gpu:2", {"gpus_per_node": 2}, 2, 2),
    # F-3: only the typed entry
    ("cpu=8,mem=32G,node=1,gres/gpu:rtx_2080_ti=1", None, {"gpus_per_node": 1}, 1, 1),
    # F-4: the site does not track GPUs
    ("cpu=1,mem=100M,node=1,billing=1", "gres:gpu:2", {"gpus_per_node": 2}, 2, None),
    # F-6: asked for with --gpus, so that the request column is empty
    ("cpu=1,gres/gpu=2", None, {"extra_options": ("--gpus=2",)}, None, 2),
    ("cpu=1", None, {"extra_options": ("--gpus=2",)}, None, None),
    # F-7: a total over the nodes
    ("cpu=2,mem=200M,node=2,billing=2,gres/gpu=4,gres/gpu:a100=4", "gres:gpu:2", {"nodes": 2}, 2, 4),
    # F-9: shards are no GPUs
    ("cpu=4,gres/shard=4", None, {"extra_options": ("--gres=shard:4",)}, None, None),
    # none were asked for
    ("cpu=1", None, {}, 0, 0),
    ("cpu=1", None, {"gpus_per_node": 0}, 0, 0),
    ("cpu=1", None, {"extra_options": ("--licenses=m:1",)}, 0, 0),
]


@pytest.mark.parametrize(("tres", "per_node", "shape", "asked", "granted"), GPU_CASES)
def test_F_1_F_3_F_4_F_6_F_7_F_9_granted_gpus_come_from_the_grant(
    tres: str, per_node: str | None, shape: dict[str, Any], asked: int | None, granted: int | None
) -> None:
    books = shaped(**shape)
    running = worker(look(books, job(7, tres=tres, tres_per_node=per_node)))
    assert (running.requested_gpus_per_node, running.granted_gpus) == (asked, granted)
    assert running.tres == tres
    assert worker(look(books, job(7, "PENDING", tres=tres, tres_per_node=per_node))).granted_gpus is None


# -- as JSON ---------------------------------------------------------------------------------------


def test_why_it_is_pending_has_a_category_while_it_is_pending() -> None:
    books = ledger(record(7))
    assert worker(look(books, job(7, "PENDING", reason="Priority"))).reason_category is ReasonCategory.PRIORITY
    assert worker(look(books, job(7, "PENDING", reason=None))).reason_category is None
    assert worker(look(books, job(7, reason="None"))).reason_category is None


def test_a_snapshot_survives_json() -> None:
    full = look(
        ledger(record(7), record(8, drain_deadline=NOW + 5), successor=head(2), opened=(submission(9),)),
        job(7),
        job(8, "PENDING"),
        job(2),
        job(50, comment=None, command=None),
        cluster={"1": ray_nodes(1, 7, demand=[{"shape": {"CPU": 1.0}, "count": 3}])},
        work={"1-a": {"remaining": 5}},
        closing=True,
    )
    for observation in (full, look(ledger()), silent(ledger(record(7)))):
        seen = snapshot(observation)
        text = json.dumps(seen.to_json(), allow_nan=False)
        assert SessionSnapshot.from_json(json.loads(text)) == seen


def test_a_document_with_unknown_or_missing_fields_is_an_error() -> None:
    document = snapshot(look(ledger())).to_json()
    with pytest.raises(TypeError, match="colour"):
        SessionSnapshot.from_json({**document, "colour": "blue"})
    with pytest.raises(TypeError, match="session_id"):
        SessionSnapshot.from_json({key: value for key, value in document.items() if key != "session_id"})
