"""Names that a shell, a filter or a line format would trip over: nothing of them is run, no foreign job is adopted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.observation import comment_for, tokens_of
from dagster_slurm.allocations.plan import Cancel
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.settings import session_id_for
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.errors import ConfigurationError
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.builders import effects, fresh, intent, job, ledger, look, record
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.sessions import HELD, Observer, Place

pytestmark = pytest.mark.fault("F19")

HOSTILE = [
    "a|b|c",
    "two words",
    "semi;touch canary",
    "$(touch canary)",
    "`touch canary`",
    "'; touch canary; '",
    '"; touch canary; "',
    "&& touch canary",
    "> canary",
    "\\",
    "%j-%A %%",
    "é ü 漢字",
    "-rf",
    "--wrap=touch canary",
    "*",
    "a,b",
    "x" * 200,
    "END_0",
    "\x1f",
    "line\nbreak",
    "tab\there",
    "${IFS}",
    "~root",
    "#comment",
    "!!",
]


def refused_field(make: Callable[[], object]) -> str | None:
    """The field that a configuration error names; None when there is none."""
    try:
        make()
    except ConfigurationError as error:
        return error.field
    return None


def test_hostile_words_reach_the_cluster_as_they_are_or_are_refused(place: Place, observer: Observer) -> None:
    """As key of an intent, and as a partition."""
    session = place.create()
    words = HOSTILE[:: amount(2, 1)]
    for word in words:
        refused = refused_field(lambda word=word: WorkerIntent(word, 1, HELD))  # type: ignore[misc]
        assert refused == (None if word.isprintable() else "WorkerIntent.key")
        if refused is None:
            (job_id,) = session.reconcile_workers(WorkerIntent(word, 1, HELD)).submitted
            assert [w.slurm_job_id for w in session.inspect().workers(word)] == [job_id]
            assert observer.recorded(word) == [job_id]
        bad = refused_field(lambda word=word: SlurmWorkerAllocationConfig(partition=word))  # type: ignore[misc]
        if bad is None:
            nowhere = session.reconcile_workers(WorkerIntent("nowhere", 1, SlurmWorkerAllocationConfig(partition=word)))
            assert (nowhere.submitted, nowhere.held_back.codes) == ((), ("refused",)), word
        else:
            assert "partition" in bad
        executed("F19", real=1)
    assert len(observer.ledger()["workers"]) == len([word for word in words if word.isprintable()])
    assert not list(Path(place.base).rglob("canary"))
    observer.check()


def test_foreign_jobs_with_our_words_are_left_alone(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path
) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    ours = observer.ledger()["workers"][0]["token"]
    options = ["--parsable", "--hold", "--output=/dev/null", "--mem=100M", "--wrap=true"]
    strangers = []
    try:
        for word in [w for w in HOSTILE if w.isprintable()][:8]:
            comment = f"{word} {comment_for(place.session_id, ours)}"
            made = box.as_user(["sbatch", f"--job-name={place.job_name}{word}", f"--comment={comment}", *options])
            strangers.append(made.stdout.strip())
        result = session.reconcile_workers(WorkerIntent("w", 1, HELD))
        assert (result.submitted, result.released, result.recovered) == ((), (), ())
        assert session.end().complete
        alive = box.run(["squeue", "-h", f"--jobs={','.join(strangers)}", "--format=%A"]).stdout.split()
        assert sorted(alive) == sorted(strangers)
        executed("F19", real=len(strangers))
    finally:
        box.run(["scancel", *strangers])


words = st.text(max_size=40) | st.sampled_from(HOSTILE) | st.from_regex(r"dagster-slurm \S+ [0-9a-f]{31,33}")


@settings(max_examples=amount(100, 2000))
@given(words, words, words)
def test_no_foreign_text_is_taken_for_a_token_of_ours(name: str, comment: str, command: str) -> None:
    """A job of our name that bears no token of an open submission is never adopted, counted or cancelled."""
    executed("F19", simulated=1)
    books = ledger(record(10))
    stranger = attrs.evolve(job(77), comment=comment, command=command)
    observation = look(books, job(10), stranger)
    request = WorkerRequest(intents=(intent(1), WorkerIntent("other", 0)))
    plan = plan_workers(books, observation, request, fresh())
    assert plan.adopted == ()
    assert plan.live == ("10",)
    assert plan.ledger.record("77") is None
    assert not any("77" in cancel.slurm_job_ids for cancel in effects(plan, Cancel))
    # Nobody knows our 128-bit tokens but our jobs: whoever bears one, wholly, is ours.
    assert tokens_of(stranger) <= set(re.findall(r"\b[0-9a-f]{32}\b", f"{comment} {command}"))
    taken = refused_field(lambda: session_id_for(name, None)) is None
    assert not taken or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name)
