"""Intents, names, estimates, results: what is refused, and what callers branch on."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate, StartProbe
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.observation import comment_for, tokens_of
from dagster_slurm.allocations.plan import HeldBack, HeldBackReasons
from dagster_slurm.allocations.result import EndResult, ReconcileResult
from dagster_slurm.allocations.settings import SessionSettings, session_id_for
from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.partitions import Partition
from dagster_slurm.slurm.replies import TestOnlyReply
from dagster_slurm_tests.builders import job, token


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": "  "}, "key"),
        ({"key": 5}, "key"),
        ({"key": None}, "key"),
        ({"key": "a\nb"}, "key"),
        ({"key": "a\x1fb"}, "key"),
        ({"key": "k" * 201}, "key"),
        ({"count": -1}, "count"),
        ({"count": 1.0}, "count"),
        ({"count": True}, "count"),
        ({"count": None}, "count"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"drain_timeout": "600"}, "drain_timeout"),
        ({"drain_timeout": float("inf")}, "drain_timeout"),
        ({"drain_timeout": float("nan")}, "drain_timeout"),
        ({"pending_timeout": 0}, "pending_timeout"),
        ({"pending_timeout": -0.5}, "pending_timeout"),
        ({"pending_timeout": True}, "pending_timeout"),
        ({"config": {"partition": "gpu"}}, "config"),
    ],
)
def test_an_intent_that_makes_no_sense_names_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        WorkerIntent(**{"key": "k", "count": 1, **values})
    assert raised.value.field == f"WorkerIntent.{field}"


def test_an_intent_as_in_the_documentation() -> None:
    config = SlurmWorkerAllocationConfig(partition="gpu-a", gpus_per_node=2, time_limit="01:00:00")
    intent = WorkerIntent(key="gpu-helpers", count=3, config=config, drain_timeout=600, pending_timeout=120)
    assert (intent.key, intent.count, intent.config) == ("gpu-helpers", 3, config)
    assert WorkerIntent("k" * 200, 0, drain_timeout=0, pending_timeout=0.5).drain_timeout == 0
    assert WorkerIntent("asset/key ü", 0).pending_timeout is None


@pytest.mark.parametrize(
    ("run_id", "name", "field"),
    [
        ("a b", None, "run_id"),
        ("", None, "run_id"),
        ("a,b", None, "run_id"),
        ("r", "-x", "session_name"),
        ("r" * 65, None, "run_id"),
    ],
)
def test_a_session_name_holds_nothing_that_a_filter_or_path_would_split(
    run_id: str, name: str | None, field: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        session_id_for(run_id, name)
    assert raised.value.field == field


def test_names_of_a_session() -> None:
    assert session_id_for("1b2", None) == "1b2"
    assert session_id_for("1b2", "gpu.x_y") == "1b2-gpu.x_y"
    settings = SessionSettings(session_id="1b2", session_dir="/base/sessions/1b2")
    assert settings.job_name == "dagster-1b2"
    assert settings.submission_dir("t") == "/base/sessions/1b2/submissions/t"


@pytest.mark.parametrize(
    ("start", "within", "expected"), [(0, 0, True), (120, 120, True), (121, 120, False), (None, 1e9, False)]
)
def test_E_9_starts_within(start: int | None, within: float, expected: bool) -> None:
    estimate = StartEstimate(
        config=SlurmWorkerAllocationConfig(), start_in_seconds=start, time_limit_seconds=None, error=None
    )
    assert estimate.starts_within(within) is expected


@pytest.mark.parametrize(
    ("state", "longest", "walltime", "words"),
    [
        ("UP", 3600, 3600, []),
        (None, None, 90_000, []),
        ("UP", 3600, None, []),
        ("DOWN", None, 60, ["is DOWN"]),
        ("UP", 3600, 3601, ["above the 3600 s"]),
        ("INACTIVE", 60, 61, ["is INACTIVE", "above the 60 s"]),
    ],
)
def test_H_7_an_estimate_says_where_it_is_blind(
    state: str | None, longest: int | None, walltime: int | None, words: list[str]
) -> None:
    answer = TestOnlyReply(0, None, True, "gpu-a")
    found = StartProbe(answer, Partition("gpu-a", state, longest)).caveats(walltime)
    assert found is not None
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))
    assert StartProbe(answer).caveats(walltime) is None


def test_held_back_is_false_when_empty_and_reads_as_sentences() -> None:
    assert not ReconcileResult().held_back
    assert str(ReconcileResult().held_back) == ""
    reasons = HeldBackReasons((HeldBack("budget", "Too many."), HeldBack("limit", "Far too many.")))
    assert reasons
    assert reasons.codes == ("budget", "limit")
    assert str(reasons) == "Too many. Far too many."
    assert str(reasons[0]) == "Too many."
    assert EndResult(complete=False, live=("7",)).unresolved == 0


def test_a_token_is_found_in_comment_and_command_and_nowhere_else() -> None:
    assert tokens_of(job(7)) == {token(7)}
    assert comment_for("run-1", token(7)) == f"dagster-slurm run-1 {token(7)}"
    nothing = job(7, comment=f"dagster-slurm {token(7)}", command=f"/x/submissions/{token(7)}/other.sh")
    assert tokens_of(nothing) == frozenset()
    assert tokens_of(job(7, comment=None, command=None)) == frozenset()
    longer = job(7, comment=f"dagster-slurm run-1 {token(7)}0", command=f"/x/submissions/{token(8)}/batch.sh \n")
    assert tokens_of(longer) == {token(8)}
