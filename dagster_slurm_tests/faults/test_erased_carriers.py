"""What carries a submission's token is overwritten by the site: another carrier finds the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.faults.test_sbatch_answers import TIMED_OUT, shim, started
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

pytestmark = pytest.mark.fault("F22")

# What a submit plugin of the site makes of the comment.
COMMENTS = {
    "overwritten": "proj=abc",
    "empty": "",
    "quoted": "'\"billing\"'",
    "wrapped": "proj=abc; $comment ;",
    "hostile": "'a|b;c $(touch x) `id`'",
}
MORE_COMMENTS = {
    "long": "'" + "x" * 900 + "'",
    "not ASCII": "'projet été ☃'",
    "several lines": "'one\ntwo'",
    "another session's": f"'dagster-slurm other-run {'0' * 32}'",
    "half a token": "'dagster-slurm ${comment}x'",
    "tabs": "'a\tb'",
    "percent": "'%A %j %%'",
    "backslashes": r"'a\\b\n'",
    "a number": "'4242'",
}
_REWRITE = """
for word do
    shift
    case $word in --comment=*) comment=${word#*=}; word="--comment="%s ;; esac
    set -- "$@" "$word"
done
"""


def site_that_rewrites(box: SlurmBox, base: Path, comment: str, *, answers: bool) -> str:
    said = '$real "$@"\n' if answers else f'$real "$@" >/dev/null\necho "{TIMED_OUT}" >&2\nexit 1\n'
    written = comment if comment.startswith("'") or not comment else f'"{comment}"'
    return shim(box, base, _REWRITE % written + said)


@pytest.mark.parametrize("kind", [*COMMENTS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE_COMMENTS)])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "answered"])
def test_J_6_job_is_found_whatever_became_of_its_comment(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, kind: str, lost: bool
) -> None:
    place.create()
    observer.mark()
    directory = site_that_rewrites(box, fresh_base, {**COMMENTS, **MORE_COMMENTS}[kind], answers=not lost)
    one = WorkerIntent("w", 1, HELD)
    first = place.open(slurm_bin=directory).reconcile_workers(one)
    (job,) = observer.accepted()
    assert first.submitted == (() if lost else (job,))
    following = place.open().reconcile_workers(one)
    assert following.recovered == ((job,) if lost else ())
    assert (following.submitted, following.live) == ((), (job,))
    assert observer.recorded("w") == [job]
    assert observer.open_tokens() == []


@pytest.mark.parametrize("kind", ["overwritten", "empty"])
def test_started_job_is_found_by_its_fate_file_alone(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, kind: str
) -> None:
    """The site also shows another command: neither comment nor path are left, and the answer was lost."""
    place.create()
    observer.mark()
    directory = site_that_rewrites(box, fresh_base, COMMENTS[kind], answers=False)
    one = WorkerIntent("w", 1)
    place.open(slurm_bin=directory).reconcile_workers(one)
    (job,) = observer.accepted()
    until(lambda: len(started(place)) == 1, "the job claimed its fate file")
    # squeue's row is rewritten: its Command column names another file.
    blind = 'timeout() { case "$*" in *squeue*) command timeout "$@" | sed "s|/submissions/|/elsewhere/|g" ;; '
    blind += '*) command timeout "$@" ;; esac; }\n'
    result = place.open(faults=blind).reconcile_workers(one)
    assert (result.submitted, result.recovered, result.live) == ((), (job,), (job,))
    assert observer.recorded("w") == [job]
    assert observer.workers() == {job: "RUNNING"}
