"""Strategies: a ledger with anything in it, any observation of it, any request."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.observation import Fate, Observation, Report
from dagster_slurm.allocations.request import Seen, WorkerRequest
from dagster_slurm.slurm.replies import AccountingReply, AccountingRow, ListedJob, Listing, Refused, Submitted
from dagster_slurm_tests.builders import (
    JOB_NAME,
    NOW,
    UNREACHABLE,
    head,
    job,
    ledger,
    node_report,
    ray_nodes,
    record,
    submission,
    token,
    trace,
)

KEYS = ("a", "b")
STATES = ["PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "COMPLETING", "COMPLETED", "FAILED", "ODD_WORD", None]

clocks = st.integers(-4000, 4000).map(lambda offset: NOW + offset)
keys = st.sampled_from(["a", "b", None])


@st.composite
def worlds(draw: st.DrawFn) -> Observation:
    """A ledger with anything in it, and any observation of it."""
    numbers = range(10, 10 + draw(st.integers(0, 6)))
    workers = [draw(workers_of(n)) for n in numbers]
    opened = [draw(submissions_of(n)) for n in range(30, 30 + draw(st.integers(0, 3)))]
    books = ledger(
        *workers,
        opened=tuple(opened),
        head=draw(st.none() | st.just(head()) | workers_of(1)),
        successor=draw(st.none() | st.just(head(2)) | workers_of(2)),
        predecessors=draw(st.sampled_from([(), (head(3),), (record(3, intent="a"),)])),
        election=draw(st.none() | claims()),
        failed_leaders=draw(st.dictionaries(st.sampled_from(["2", "10", "11", "99"]), st.integers(0, 3), max_size=2)),
        revoked_tokens=draw(st.sampled_from([(), (token(40),)])),
        extra={"future": 1},
    )
    listed = [n for n in (1, 2, 3, *numbers, 30, 31, 32, 40, 50) if draw(st.booleans())]
    jobs = tuple(draw(rows_of(n)) for n in listed)
    answered = draw(st.sampled_from([True, True, True, False]))
    traced = [item for item in opened if draw(st.booleans())]
    return Observation(
        login_clock=draw(st.integers(NOW, NOW + 4000)),
        ledger=books,
        ledger_sha256="0" * 64,
        traces={item.token: draw(traces_of(int(item.token, 16))) for item in traced},
        listing=Listing(answered=answered, jobs=jobs if answered else (), error=None if answered else UNREACHABLE),
        accounting=draw(st.none() | accounts()),
        closing=draw(st.sampled_from([False, False, False, True])),
        drains=frozenset(token(n) for n in numbers if draw(st.booleans())),
        nodes={(str(n), f"n{n}"): draw(node_reports()) for n in (1, *numbers) if draw(st.booleans())},
        cluster={
            str(n): ray_nodes(n, token=token(n), age_seconds=draw(ages)) for n in (1, 2, 10) if draw(st.booleans())
        },
    )


ages = st.sampled_from([1, 14, 40, 400])


def node_reports() -> st.SearchStrategy[Report]:
    return st.builds(
        lambda age, draining: node_report(age, draining=draining), ages, st.sampled_from([False, False, True])
    )


def claims() -> st.SearchStrategy[dict[str, Any]]:
    """An election: of a worker, the successor, somebody unknown; lately or long ago; or nothing readable."""
    return st.builds(
        lambda job_id, at: {"slurm_job_id": job_id, "nonce": "ab", "claimed_at": at},
        st.sampled_from(["10", "11", "2", "99"]),
        st.none() | clocks,
    ) | st.just({})


def workers_of(n: int) -> st.SearchStrategy[AllocationRecord]:
    return st.builds(
        lambda key, at, deadline, absent, final: record(
            n,
            intent=key,
            submitted_at=at,
            drain_deadline=deadline,
            absent_since=absent,
            final_state=final,
            ended_at=None if final is None else NOW - 100,
            extra={"note": n},
        ),
        keys,
        st.none() | clocks,
        st.none() | st.none() | clocks,
        st.none() | clocks,
        st.sampled_from([None, None, None, "FAILED"]),
    )


def submissions_of(n: int) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda key, at, role: submission(
            n,
            intent=key,
            role=role if key is None else "worker",
            prepared_at=at,
            dated=key is not None,
            extra={"note": n},
        ),
        keys,
        clocks,
        st.sampled_from(["worker", "head", "successor"]),
    )


def rows_of(n: int) -> st.SearchStrategy[ListedJob]:
    return st.builds(
        lambda state, left, at: job(n, state, time_left_seconds=left, submitted_at=at),
        st.sampled_from(STATES),
        st.none() | st.integers(0, 9000),
        st.none() | clocks,
    )


def traces_of(n: int) -> st.SearchStrategy[Any]:
    return st.sampled_from(
        [
            trace(Fate.READY),
            trace(Fate.SENT),
            trace(Fate.SENT, outcome=Submitted(str(n), None), submitted_at=NOW),
            trace(Fate.SENT, outcome=Refused("refused")),
            trace(Fate.STARTED, started_job_id=str(n)),
            trace(Fate.REVOKED),
            trace(Fate.MISSING),
        ]
    )


@st.composite
def accounts(draw: st.DrawFn) -> AccountingReply:
    found = {
        str(n): AccountingRow(
            state=draw(st.sampled_from(STATES)), name=JOB_NAME, submitted_at=None, nodes=(), exit_code=0
        )
        for n in (1, 2, 3, 10, 11, 12)
        if draw(st.booleans())
    }
    return AccountingReply(answered=True, rows=found)


@st.composite
def requests(draw: st.DrawFn) -> WorkerRequest:
    some = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=2))
    seen = Seen(
        observed_at=draw(clocks),
        head_job_id=draw(st.sampled_from([None, "1", "1", "2"])),
        slurm_job_ids=frozenset(draw(st.sets(st.sampled_from([str(n) for n in (1, 2, 3, *range(10, 16), 30, 31)])))),
    )
    return WorkerRequest(
        intents=tuple(
            WorkerIntent(
                key,
                draw(st.integers(0, 7)),
                drain_timeout=draw(st.sampled_from([None, 0, 30])),
                pending_timeout=draw(st.sampled_from([None, None, 60])),
            )
            for key in some
        ),
        seen=draw(st.none() | st.just(seen)),
        max_submissions=draw(st.none() | st.integers(0, 4)),
        release=frozenset(
            draw(st.sets(st.sampled_from([str(n) for n in (1, 2, 3, *range(10, 16), 30, 99)]), max_size=3))
        ),
        submissions_per_call=draw(st.sampled_from([50, 3])),
        live_per_session=draw(st.sampled_from([200, 8])),
        own_tokens=frozenset(draw(st.sets(st.sampled_from([token(n) for n in (10, 30, 31, 40)]), max_size=2))),
        own_expired=frozenset(draw(st.sets(st.sampled_from(["10", "11"]), max_size=1))),
    )
