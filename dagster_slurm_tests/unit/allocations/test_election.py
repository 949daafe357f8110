"""When a session needs another head, and who would lead it."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_slurm.allocations.bookkeeping import bring_up_to_date
from dagster_slurm.allocations.election import (
    CLAIM_LIMIT_SECONDS,
    ENDED,
    ENDING,
    HEAD_SILENT_SECONDS,
    LEADER_FAILURES_ALLOWED,
    SILENT,
    Claim,
    ClaimState,
    best_leader,
    claim_of,
    claim_state,
    head_need,
)
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Observation, Report
from dagster_slurm_tests.builders import (
    NOW,
    head,
    job,
    ledger,
    look,
    node_report,
    ray_nodes,
    record,
    silent,
    snapshot,
    token,
)


def need(observation: Observation) -> str | None:
    assert observation.ledger is not None
    return head_need(bring_up_to_date(observation.ledger, observation), observation)


def leader(observation: Observation, need: str = ENDED) -> str | None:
    assert observation.ledger is not None
    found = best_leader(bring_up_to_date(observation.ledger, observation), observation, need)
    return None if found is None else found.slurm_job_id


def state(claim: Claim, observation: Observation) -> ClaimState:
    assert observation.ledger is not None
    return claim_state(claim, bring_up_to_date(observation.ledger, observation), observation)


def ended(books: Ledger, *jobs: Any, **changes: Any) -> Observation:
    """A look at a session whose head has ended."""
    return look(books, *jobs, head_job=job(1, "TIMEOUT"), **changes)


def up(n: int, *, age_seconds: int = 1, bearer: int | None = None) -> dict[str, Report]:
    """Job n has published a head of its own."""
    return {str(n): ray_nodes(n, age_seconds=age_seconds, token=token(n if bearer is None else bearer))}


# -- is one needed? ----------------------------------------------------------------------------------


def test_a_head_that_runs_or_waits_needs_nothing() -> None:
    assert need(look(ledger())) is None
    assert need(look(ledger(), head_job=job(1, "PENDING"))) is None
    assert need(look(ledger(), head_job=job(1, "SUSPENDED"))) is None
    assert need(look(ledger(), head_job=job(1, time_left_seconds=None))) is None


def test_a_head_that_ended_or_never_was_is_needed() -> None:
    assert need(ended(ledger())) == ENDED
    assert need(look(ledger(head=None))) == ENDED


def test_nobody_knows_while_the_scheduler_is_silent() -> None:
    assert need(silent(ledger())) is None
    assert need(silent(ledger(head=None))) is None


@pytest.mark.parametrize(
    ("left", "limit", "expected"),
    [(60, 3600, ENDING), (61, 3600, None), (30, 120, ENDING), (31, 120, None), (60, None, ENDING), (61, None, None)],
)
def test_a_head_near_the_end_of_its_walltime_is_ending(left: int, limit: int | None, expected: str | None) -> None:
    assert need(look(ledger(), head_job=job(1, time_left_seconds=left, time_limit_seconds=limit))) == expected


def test_a_head_is_silent_when_agent_and_ray_are_and_not_when_they_never_spoke() -> None:
    old, young = HEAD_SILENT_SECONDS, HEAD_SILENT_SECONDS - 1
    cluster = {"1": ray_nodes(1, age_seconds=old)}
    assert need(look(ledger(), cluster=cluster)) == SILENT
    assert need(look(ledger(), cluster=cluster, nodes={("1", "n1"): node_report(old)})) == SILENT
    assert need(look(ledger(), cluster=cluster, nodes={("1", "n1"): node_report(young)})) is None
    assert need(look(ledger(), cluster={"1": ray_nodes(1, age_seconds=young)})) is None
    assert need(look(ledger(), nodes={("1", "n1"): node_report(old)})) is None


def test_the_snapshot_says_what_is_needed() -> None:
    assert snapshot(look(ledger())).head_needs is None
    assert snapshot(ended(ledger())).head_needs == ENDED
    assert snapshot(ended(ledger(), closing=True)).head_needs is None
    assert snapshot(ended(ledger(election={"slurm_job_id": "7"}))).head_needs == "claimed"


# -- who leads? --------------------------------------------------------------------------------------


def test_a_running_successor_comes_first() -> None:
    books = ledger(record(7), successor=head(2))
    assert leader(ended(books, job(2), job(7))) == "2"
    assert leader(ended(books, job(2, "PENDING"), job(7))) == "7"


def test_the_worker_with_fewest_failures_and_most_time_left_leads() -> None:
    books = ledger(record(7), record(8), record(9))
    jobs = (job(7, time_left_seconds=500), job(8, time_left_seconds=900), job(9, time_left_seconds=700))
    assert leader(ended(books, *jobs)) == "8"
    assert leader(ended(ledger(*books.workers, failed_leaders={"8": 1}), *jobs)) == "9"
    assert leader(ended(books, job(7, time_left_seconds=None), *jobs[1:])) == "7", "without a limit it has the most"
    equal = tuple(job(n, time_left_seconds=500) for n in (9, 8, 7))
    assert leader(ended(books, *equal)) == "7"


def test_one_that_reported_lately_is_preferred() -> None:
    books = ledger(record(7), record(8))
    jobs = (job(7, time_left_seconds=500), job(8, time_left_seconds=900))
    assert leader(ended(books, *jobs, nodes={("7", "n7"): node_report(5)})) == "7"


def test_a_job_id_that_is_no_number_has_its_place() -> None:
    odd = record(7, slurm_job_id="7_1")
    assert leader(ended(ledger(odd), job(7, slurm_job_id="7_1"))) == "7_1"


@pytest.mark.parametrize("word", ["PENDING", "CONFIGURING", "SUSPENDED", "COMPLETING", "FAILED", "ODD_WORD"])
def test_only_what_runs_can_lead(word: str) -> None:
    assert leader(ended(ledger(record(7)), job(7, word))) is None


def test_a_released_draining_ending_or_failed_one_never_leads() -> None:
    assert leader(ended(ledger(record(7, drain_deadline=NOW + 900)), job(7))) is None
    draining = {("7", "n7"): node_report(draining=True)}
    assert leader(ended(ledger(record(7)), job(7), nodes=draining)) is None
    assert leader(ended(ledger(record(7), head=None), job(7), nodes=draining)) is None
    assert leader(ended(ledger(record(7)), job(7, time_left_seconds=60))) is None
    assert leader(ended(ledger(record(7), failed_leaders={"7": LEADER_FAILURES_ALLOWED}), job(7))) is None
    assert leader(ended(ledger(record(7)), job(7))) == "7"


def test_an_ending_head_is_replaced_only_by_one_with_more_time() -> None:
    short = job(1, time_left_seconds=50)
    books = ledger(record(7))
    assert leader(look(books, job(7, time_left_seconds=51, time_limit_seconds=80), head_job=short), ENDING) == "7"
    assert leader(look(books, job(7, time_left_seconds=50, time_limit_seconds=80), head_job=short), ENDING) is None
    # Whether it has a head is asked first, so this combination cannot come from a need.
    assert leader(look(ledger(record(7), head=None), job(7)), ENDING) == "7"


def test_a_silent_head_is_replaced_only_by_one_that_speaks() -> None:
    books = ledger(record(7))
    assert leader(look(books, job(7)), SILENT) is None
    assert leader(look(books, job(7), nodes={("7", "n7"): node_report(5)}), SILENT) == "7"


# -- how far is a claim? -----------------------------------------------------------------------------

CLAIM = Claim("7", "ab", NOW - 10)


def test_a_claim_is_read_as_it_was_written() -> None:
    assert claim_of(ledger(election=CLAIM.to_json())) == CLAIM
    assert claim_of(ledger()) is None
    assert claim_of(ledger(election={"nonce": "ab"})) is None
    assert claim_of(ledger(election={"slurm_job_id": "7"})) == Claim("7", "None", 0)


def test_a_claim_is_up_when_a_fresh_report_shows_ray_on_its_own_node() -> None:
    books = ledger(record(7))
    assert state(CLAIM, ended(books, job(7))) is ClaimState.COMING
    assert state(CLAIM, ended(books, job(7), cluster=up(7))) is ClaimState.UP
    assert state(CLAIM, ended(books, job(7), cluster=up(7, age_seconds=16))) is ClaimState.COMING
    assert state(CLAIM, ended(books, job(7), cluster=up(7, bearer=8))) is ClaimState.COMING
    empty = Report(content={"token": token(7), "nodes": []}, age_seconds=1)
    assert state(CLAIM, ended(books, job(7), cluster={"7": empty})) is ClaimState.COMING
    assert state(CLAIM, ended(books, job(7, "SUSPENDED"), cluster=up(7))) is ClaimState.COMING


def test_a_claim_fails_when_its_time_is_up() -> None:
    late = Claim("7", "ab", NOW - CLAIM_LIMIT_SECONDS - 1)
    assert state(late, ended(ledger(record(7)), job(7))) is ClaimState.FAILED
    assert state(late, ended(ledger(record(7)), job(7), cluster=up(7))) is ClaimState.UP, "late, and up all the same"


def test_a_claim_of_one_that_ended_was_released_or_is_unknown_is_void() -> None:
    assert state(CLAIM, ended(ledger(record(7)), job(7, "FAILED"))) is ClaimState.VOID
    assert state(CLAIM, ended(ledger(record(7, drain_deadline=NOW + 9)), job(7), cluster=up(7))) is ClaimState.VOID
    assert state(CLAIM, ended(ledger())) is ClaimState.VOID
