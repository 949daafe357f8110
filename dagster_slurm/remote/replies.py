"""Read the sections of an observe or commit script into facts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from dagster_slurm.allocations.ledger import read_ledger
from dagster_slurm.allocations.observation import NO_LEDGER, Fate, Observation, Report, SubmissionTrace
from dagster_slurm.allocations.plan import CommitRefused, Committed, NotTried, SubmissionOutcome
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.errors import LedgerDamaged, ReplyIncomplete, SessionNotFound
from dagster_slurm.remote.frames import Reply
from dagster_slurm.slurm.replies import Listing, parse_listing, parse_submission

# Statuses of the ledger's section, apart from those of cat.
NO_DIRECTORY_STATUS = 3
NO_LEDGER_STATUS = 4


def missing(reply: Reply, what: str, address: str) -> ReplyIncomplete:
    """The error for a reply that lacks a section."""
    return ReplyIncomplete(
        f"The reply from {address} lacks {what}; what the script did is unknown.",
        cluster_said=reply.noise or None,
        remedy="look at the lines of remote_setup and at the login shell's profile; the next call observes again.",
    )


def read_observation(reply: Reply, settings: SessionSettings, address: str) -> Observation:
    """Facts of one look, without accounting.

    Raises:
        ReplyIncomplete: clock or ledger is missing. A missing listing is an unanswered one, not an error.
        SessionNotFound: there is no such session directory.
        LedgerDamaged, LedgerTooNew: the ledger cannot be read.
    """
    facts, stored = _facts(reply), reply.section("ledger")
    if facts is None or stored is None:
        raise missing(reply, "the login node's clock or the session's ledger", address)
    path = f"{address}:{settings.session_dir}/allocation.json"
    if stored.status == NO_DIRECTORY_STATUS:
        raise SessionNotFound(
            f"There is no session directory {settings.session_dir} on {address}.",
            field="SlurmComputeResource.remote_base",
            remedy="check remote_base and the run; a session's directory is made when its run first asks for it.",
        )
    absent = stored.status == NO_LEDGER_STATUS
    if stored.status != 0 and not absent:
        raise LedgerDamaged(f"{path} could not be read.", cluster_said=stored.text)
    listing = reply.section("listing")
    reports = _reports(facts, settings.session_dir)
    return Observation(
        login_clock=facts.login_clock,
        # An empty file is a damaged ledger, not a missing one.
        ledger=None if absent else read_ledger(stored.body, path=path),
        ledger_sha256=NO_LEDGER if absent else hashlib.sha256(stored.body).hexdigest(),
        traces=_traces(reply),
        listing=Listing(answered=False, jobs=(), error=reply.noise or "no answer")
        if listing is None
        else parse_listing(listing.status, listing.text),
        closing=facts.closing,
        drains=frozenset(facts.drains.split()),
        nodes={key[1:]: report for key, report in reports.items() if key[0] == "nodes"},  # type: ignore[misc]
        cluster={key[1]: report for key, report in reports.items() if key[0] == "cluster"},
        drivers={key[1].removesuffix("/driver"): report for key, report in reports.items() if key[0] == "payloads"},
        work=_work(facts, settings.session_dir),
    )


_TRACE = re.compile(r"(?P<token>\S+) (?P<fate>\S+)(?: (?P<job>\S+))?\n(?P<result>.*)", re.DOTALL)
_RESULT = re.compile(r"(?P<status>\d+) (?P<clock>\d+)\n(?P<stdout>.*)\n\036\n(?P<stderr>.*)\n\036", re.DOTALL)


def _traces(reply: Reply) -> dict[str, SubmissionTrace]:
    section = reply.section("traces")
    texts = () if section is None else section.text.split("\035")
    found = (match for match in map(_TRACE.fullmatch, texts) if match is not None)
    return {match["token"]: _trace(match) for match in found}


def _trace(match: re.Match[str]) -> SubmissionTrace:
    """The files of one submission: its fate, then what sbatch answered. A result without its last line is not whole."""
    fate = Fate(match["fate"]) if match["fate"] in {fate.value for fate in Fate} else Fate.MISSING
    result = _RESULT.fullmatch(match["result"])
    if result is None:
        return SubmissionTrace(fate=fate, started_job_id=match["job"])
    return SubmissionTrace(
        fate=fate,
        started_job_id=match["job"],
        outcome=parse_submission(int(result["status"]), result["stdout"], result["stderr"]),
        submitted_at=int(result["clock"]),
    )


@attrs.frozen
class _Facts:
    """The parts of the last section of a look: what is read after the listing, and the clock from before it."""

    login_clock: int
    closing: bool
    drains: str
    times: str
    reports: str
    work: str


def _facts(reply: Reply) -> _Facts | None:
    section = reply.section("facts")
    parts = [] if section is None else section.text.split("\034")
    if len(parts) != 6 or not parts[0].isdigit():
        return None
    clock, closing, *rest = parts
    return _Facts(int(clock), closing == "yes", *rest)


def _reports(facts: _Facts, session_dir: str) -> dict[tuple[str, ...], Report]:
    """Agents' files with their ages by the filesystem's clock, which the lease has just been given."""
    lines = (line.partition(" ") for line in facts.times.splitlines())
    times = {path: int(time) for time, _, path in lines if time.isdigit()}
    now = times.get(f"{session_dir}/lease")
    found: dict[tuple[str, ...], Report] = {}
    for path, content in _files(facts.reports, session_dir):
        if now is None or path not in times:
            continue
        folder, _, name = path.removeprefix(f"{session_dir}/").removesuffix(".json").partition("/")
        report = Report(content=content, age_seconds=max(0, now - times[path]))
        key = (folder, *name.split(".", 1)) if folder == "nodes" else (folder, name)
        found[key] = report
    return found


def _work(facts: _Facts, session_dir: str) -> dict[str, Mapping[str, Any]]:
    return {path.split("/")[-2]: content for path, content in _files(facts.work, session_dir)}


def _files(text: str, session_dir: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and JSON object of each line that ``grep -H`` printed; one that is no JSON object is left out."""
    for line in text.splitlines():
        # The directory may hold a colon; what follows it does not.
        path, colon, body = line.removeprefix(session_dir).partition(":")
        content = _json_object(body)
        if colon and content is not None:
            yield session_dir + path, content


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_commit(reply: Reply, settings: SessionSettings, address: str) -> Committed | CommitRefused:
    """What became of a commit.

    Raises:
        ReplyIncomplete: the outcome did not arrive; whether it was done is unknown.
    """
    outcome = reply.section("outcome")
    if outcome is None:
        raise missing(reply, "the outcome of a commit", address)
    first, _, rest = outcome.text.partition("\n")
    if first.startswith("refused "):
        return CommitRefused(
            code=first.split()[1],
            detail=rest.strip(),
            observation=read_observation(reply, settings, address),
        )
    if not reply.complete:
        raise missing(reply, "the outcome of a commit's submissions", address)
    notes = [line.split(" ", 1) for line in rest.splitlines() if " " in line]
    return Committed(
        submissions={token: _submission_outcome(trace) for token, trace in _traces(reply).items()},
        revoked={token: word == "revoked" for word, token in notes if word in ("revoked", "kept")},
        skipped=sum(1 for word, _ in notes if word == "skipped"),
    )


def _submission_outcome(trace: SubmissionTrace) -> SubmissionOutcome:
    if trace.outcome is not None:
        return SubmissionOutcome(trace.outcome, trace.submitted_at)
    if trace.fate is Fate.REVOKED:
        return SubmissionOutcome(NotTried("an earlier submission of this call failed, or its time was up"), None)
    return SubmissionOutcome(parse_submission(0, "", "its outcome was not written"), None)
