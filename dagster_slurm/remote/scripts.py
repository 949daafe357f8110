"""The text of the two scripts of a session, observe and commit. Values in, shell text out."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Iterable
from functools import lru_cache

from dagster_slurm.allocations.ledger import Ledger, flat_json, read_ledger
from dagster_slurm.allocations.plan import (
    Archive,
    Cancel,
    Close,
    CommitRequest,
    Drain,
    Effect,
    Forget,
    Revoke,
    Submit,
)
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.frames import quote
from dagster_slurm.remote.submission import batch_script, submit_command
from dagster_slurm.slurm.commands import COMMUNICATION_WORDS
from dagster_slurm.slurm.replies import sacct_arguments, squeue_arguments, squeue_by_id_arguments

#: A commit with more submissions than this has two of them on their way at a time: a busy controller answers slowly.
FEW_SUBMISSIONS = 8
MANY_AT_ONCE = 2


@lru_cache(maxsize=4)
def part(name: str) -> str:
    """A shell part that ships with the package, without its comment lines."""
    text = importlib.resources.files("dagster_slurm.remote").joinpath(name).read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")) + "\n"


def command(words: Iterable[str]) -> str:
    """One command line with every word quoted."""
    return " ".join(quote(word) for word in words)


def observe_functions(settings: SessionSettings) -> str:
    """Definitions that ``observe`` needs; they run nothing."""
    listing = command(squeue_arguments(settings.job_name, settings.cluster))
    return f"session={quote(settings.session_dir)}\nlist_jobs() {{ SLURM_TIME_FORMAT=%s {listing}; }}\n" + part(
        "observe.sh"
    )


def observe_script(settings: SessionSettings) -> str:
    """One look."""
    return observe_functions(settings) + "observe\n"


def absence_script(settings: SessionSettings, job_ids: Iterable[str], since_epoch: int) -> str:
    """Ask about jobs that a listing by name lacks: the queue by their ids, then accounting."""
    ids = tuple(job_ids)
    by_id = command(squeue_by_id_arguments(ids, settings.cluster))
    words = command(sacct_arguments(ids, since_epoch, settings.cluster))
    return (
        f"list_by_id() {{ SLURM_TIME_FORMAT=%s {by_id}; }}\nask_accounting() {{ SLURM_TIME_FORMAT=%s {words}; }}\n"
        "section by-id list_by_id\nsection accounting ask_accounting\n"
    )


def commit_script(settings: SessionSettings, request: CommitRequest) -> str:
    """One commit, with a fresh look when it is refused."""
    ledger = read_ledger(request.ledger, path="the new ledger")
    submits = [effect for effect in request.effects if isinstance(effect, Submit)]
    needs_controller = any(isinstance(effect, Submit | Cancel) for effect in request.effects)
    parameters = {
        "nonce": request.nonce,
        "expected": request.expected_sha256,
        "new_ledger": request.ledger.decode("ascii"),
        "new_sum": hashlib.sha256(request.ledger).hexdigest(),
        "observed_at": str(request.observed_at),
        "job_name": settings.job_name,
        "cluster": settings.cluster or "",
        "needs_controller": "yes" if needs_controller else "no",
        "even_if_closing": "yes" if request.even_if_closing else "no",
        "lock_wait": str(settings.lock_wait_seconds),
        "lock_stale": str(settings.lock_stale_seconds),
        "effect_limit": str(settings.effect_limit_seconds),
        "age_limit": str(settings.observation_limit_seconds),
        "at_once": str(MANY_AT_ONCE if len(submits) > FEW_SUBMISSIONS else 1),
    }
    return "".join(
        [
            observe_functions(settings),
            *(f"{name}={quote(value)}\n" for name, value in parameters.items()),
            _failure_function(),
            _preparation(settings, ledger, submits),
            _function("mark_open", [f": >open/{submit.token}" for submit in submits], " &&\n"),
            _function("archive", [_archive(e) for e in request.effects if isinstance(e, Archive)], " &&\n"),
            *(_submission(settings, ledger, submit) for submit in {s.shape: s for s in submits}.values()),
            _function("effects", [line for e in request.effects for line in _effect(e)], "\n"),
            part("commit.sh"),
            "commit\n",
        ]
    )


def close_script(settings: SessionSettings) -> str:
    """Mark the session as ending and cancel by name: both can be done at any time, so it takes no lock."""
    return "".join(
        [
            observe_functions(settings),
            f"job_name={quote(settings.job_name)}\ncluster={quote(settings.cluster or '')}\n",
            part("commit.sh"),
            'if cd "$session"; then user_name=$(id -un); effect_close; section listing list_jobs; fi\n',
        ]
    )


def _function(name: str, lines: list[str], joined_by: str) -> str:
    return f"{name}() {{\n{joined_by.join(lines) or ':'}\n}}\n"


def _failure_function() -> str:
    """Whether a failed sbatch may have made a job all the same: the rule of ``parse_submission``, in shell."""
    return f"""is_communication_failure() {{
    case $1 in 0 | 12[4-7] | 129 | 1[3-8]? | 19[0-2]) return 0 ;; esac
    printf %s "$2" | grep -qiE {quote(COMMUNICATION_WORDS)}
}}
"""


def _preparation(settings: SessionSettings, ledger: Ledger, submits: list[Submit]) -> str:
    """Write the files of each submission; nothing refers to them before the ledger does.

    Submissions that are alike share one text of their batch script: fifty copies would be most of the commit.
    """
    directories = " ".join(f"submissions/{submit.token}" for submit in submits)
    texts: dict[str, str] = {}
    lines = ["prepare_answers", f"mkdir {directories}"] if submits else []
    for submit in submits:
        text = batch_script(settings, ledger.shapes[submit.shape], submit)
        name = texts.setdefault(text, f"batch_{len(texts)}")
        lines.append(f'prepare {submit.token} "${name}"')
    drop = f"rm -rf {directories}" if submits else ":"
    return "".join(
        [
            *(f"{name}={quote(text)}\n" for text, name in texts.items()),
            _function("prepare_submissions", lines, " &&\n"),
            _function("drop_submissions", [drop], "\n"),
        ]
    )


def _archive(effect: Archive) -> str:
    text = "".join(json.dumps(flat_json(record)) + "\n" for record in effect.records)
    return f"printf %s {quote(text)} >>history.jsonl"


def _submission(settings: SessionSettings, ledger: Ledger, like: Submit) -> str:
    """Submits a token of this shape: written once, since fifty times the same options would be most of the commit."""
    words = submit_command(settings, ledger.shapes[like.shape], like.token)
    with_token = " ".join('"$1"'.join(quote(piece) for piece in word.split(like.token)) for word in words)
    return _function(f"submit_{like.shape}", [f'effect_submit "$1" {like.shape} {with_token}'], "\n")


def _effect(effect: Effect) -> list[str]:
    if isinstance(effect, Submit):
        return [f"submit_{effect.shape} {effect.token}"]
    if isinstance(effect, Cancel):
        return [f"effect_cancel {'pending' if effect.only_pending else 'any'} {command(effect.slurm_job_ids)}"]
    if isinstance(effect, Drain):
        content = json.dumps({"deadline": effect.deadline, "remaining_seconds": effect.remaining_seconds})
        return [f"effect_drain {quote(effect.token)} {quote(content)}"]
    if isinstance(effect, Revoke):
        return [f"effect_revoke {quote(effect.token)} {effect.fate.value}"]
    if isinstance(effect, Forget):
        return [f"effect_forget {command(effect.tokens)}"]
    if isinstance(effect, Close):
        return ["effect_close"]
    return []  # Archive comes before the ledger
