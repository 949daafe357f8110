"""Bugs planted in the text of the scripts are caught; the same checks pass on the scripts as they are.

The scripts are the real ones; Slurm's commands are stand-ins, so that every rename and command can be watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_slurm.errors import LedgerDamaged, RemoteError
from dagster_slurm_tests.fake_slurm import FakeSlurm, fake
from dagster_slurm_tests.sessions import at_step, until

__all__ = ["fake"]

Check = Callable[[FakeSlurm, Mapping[str, str]], None]


def survives_a_power_cut(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    """The file server dies right after the rename: names are kept, contents that nobody synced are not."""
    unsynced = fake.directory / "unsynced"
    forgetful = (
        f'dd() {{ command dd "$@"; case "$*" in *fsync*) ;; *) '
        f'for word do case $word in of=*) echo "${{word#of=}}" >>{unsynced} ;; esac; done ;; esac; }}\n'
        f'mv() {{ command mv "$@" || return; case "$*" in *" allocation.json") '
        f'if grep -qx "$2" {unsynced} 2>/dev/null; then printf "" >allocation.json; fi ;; esac; }}\n'
    )
    dies = forgetful + at_step("ledger-in-place", 1, "kill -9 $$")
    with contextlib.suppress(RemoteError):
        fake.call(2, fake.site(dies, edits))
    fake.call(2)
    assert len(fake.live()) == 3


def begins_nothing_after_it_lost_its_lock(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    before = len(fake.calls("sbatch"))
    fake.call(2, fake.site(at_step("ledger-in-place", 1, "rm -f lock/owner.*"), edits))
    assert len(fake.calls("sbatch")) == before


def submits_nothing_that_was_revoked(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    before = len(fake.calls("sbatch"))
    revoke = "for one in submissions/*/ready; do : >${one%/ready}/sent; mv $one ${one%/ready}/revoked; done"
    fake.call(2, fake.site(at_step("before-sent", 1, revoke), edits))
    assert len(fake.calls("sbatch")) == before


def loses_no_ledger_to_a_holder_that_wakes_up(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    at, go = fake.directory / "at", fake.directory / "go"
    wait = f'mv() {{ case "$2" in prepared.*) touch {at}; until [ -e {go} ]; do sleep 0.02; done ;; esac; '
    sleepy = wait + 'command mv "$@"; }\n'
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(fake.call, 2, fake.site(sleepy, edits))
        until(at.exists, "the first holder before its rename")
        fake.call(2, fake.site(edits=edits, lock_stale_seconds=0))
        content = (fake.session / "allocation.json").read_bytes()
        go.touch()
        first.result(timeout=30)
    assert (fake.session / "allocation.json").read_bytes() == content
    assert len(fake.live()) == 3


def submits_nothing_while_the_scheduler_is_silent(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    fake.call(2)
    fake.instead("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    before = len(fake.calls("sbatch"))
    outcome = fake.call(3, fake.site(edits=edits))
    assert len(fake.calls("sbatch")) == before
    assert "scheduler_silent" in [reason.code for reason in outcome.held_back]


def drops_a_refused_submission_at_once(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    fake.instead("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    outcome = fake.call(2, fake.site(edits=edits))
    assert [reason.code for reason in outcome.held_back] == ["refused"]
    assert not fake.ledger().worker_submissions


def knows_every_job_when_it_is_killed(fake: FakeSlurm, edits: Mapping[str, str]) -> None:
    dead = fake.directory / "dead"
    dies = f"[ ! -e {dead} ] || exit 7\n" + at_step("after-sbatch", 1, f"touch {dead}; kill -9 $$")
    with pytest.raises(RemoteError):
        fake.call(1, fake.site(dies, edits))
    assert fake.live() == ["1", "2"]
    ledger = fake.ledger()
    known = {*ledger.worker_submissions, *(record.token for record in ledger.records())}
    assert all(any(token in job.read_text() for token in known) for job in (fake.directory / "jobs").iterdir())


FINISH = '    while [ "$on_their_way" -gt 0 ]; do finish_oldest; done'
BUGS: dict[str, tuple[Check, dict[str, str]]] = {
    "drop the sync before the rename": (survives_a_power_cut, {"conv=excl,fsync": "conv=excl"}),
    "drop the recheck before the effect: its lock": (
        begins_nothing_after_it_lost_its_lock,
        {"! may_act ||": "false ||"},
    ),
    "drop the recheck before the effect: its fate": (
        submits_nothing_that_was_revoked,
        {'make_first "$dir/sent" ||': ": ||"},
    ),
    "take over without the fence": (
        loses_no_ledger_to_a_holder_that_wakes_up,
        {'rm -f "prepared.${former%%,*}"': ":"},
    ),
    "ignore an exit status: squeue's": (
        submits_nothing_while_the_scheduler_is_silent,
        {
            "section listing list_jobs": 'emit listing 0 "$(list_jobs 2>/dev/null)"',
            "section by-id list_by_id": 'emit by-id 0 "$(list_by_id 2>/dev/null)"',
        },
    ),
    "ignore an exit status: sbatch's": (drops_a_refused_submission_at_once, {"    status=$?": "    status=0"}),
    "act before recording": (
        knows_every_job_when_it_is_killed,
        {
            "    put_in_place ||": f"    effects\n{FINISH}\n    put_in_place ||",
            "checkpoint ledger-in-place\n    effects\n": "checkpoint ledger-in-place\n",
        },
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_bug_in_a_script_is_caught(bug: str, tmp_path: Path) -> None:
    check, edits = BUGS[bug]
    sound, broken = FakeSlurm(tmp_path / "sound"), FakeSlurm(tmp_path / "broken")
    sound.create()
    check(sound, {})
    broken.create()
    with pytest.raises((AssertionError, LedgerDamaged)):
        check(broken, edits)
    assert broken.edited == set(edits), "the scripts do not say that any more"
