"""What a tick looks like in Dagster: numbers that chart, a table of allocations, and sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import dagster as dg

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.result import ReconcileResult
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.policy import PolicyProblem
from dagster_slurm.slurm.states import StateClass, state_class
from dagster_slurm.timeline import Timeline, large_picture, small_picture
from dagster_slurm.usage import Usage

#: A tick that says the same as the last recorded one is recorded at most this often.
REPEAT_SECONDS = 600.0
#: Rows of a table; a run with more allocations says how many were left out.
MAX_ROWS = 100
_MAX_TEXT = 4_000

_COLUMNS = (
    ("job", "string", "Slurm's job id"),
    ("role", "string", "head, successor, worker or predecessor"),
    ("intent", "string", "key of the intent that counts it"),
    ("state", "string", "Slurm's word"),
    ("reason", "string", "why it is pending"),
    ("nodes", "string", "node names once it runs, else how many were asked for"),
    ("GPUs", "int", "granted, of the whole allocation"),
    ("ready", "bool", "every node joined Ray"),
    ("draining", "bool", "takes no new work"),
    ("time left", "string", "remaining walltime, h:mm:ss"),
    ("deadline in", "string", "time until it is cancelled, h:mm:ss"),
)
_LEFT_OUT_WHEN_QUIET = ("intent", "reason", "GPUs", "draining", "deadline in")


@attrs.frozen(kw_only=True)
class Tick:
    """One look at the session and what followed from it.

    Attributes:
        snapshot: What was seen; None when the cluster could not be asked.
        intents: What the policy asked for; None when it asked for nothing.
        result: What was done; None when nothing was tried.
        problem: Why the policy's answer could not be used.
        decision: The tick in a sentence.
        work: What the payload had reported.
        about_head: What was done about a head that needs a successor; a part of ``decision`` as well.
    """

    decision: str
    snapshot: SessionSnapshot | None = None
    intents: tuple[WorkerIntent, ...] | None = None
    result: ReconcileResult | None = None
    problem: PolicyProblem | None = None
    work: Mapping[str, Any] | None = None
    about_head: str = ""

    @property
    def acted(self) -> bool:
        """Whether anything was submitted, released, expired or recovered."""
        done = self.result
        return done is not None and bool(done.submitted or done.released or done.expired or done.recovered)


def workers_live(snapshot: SessionSnapshot) -> tuple[AllocationSnapshot, ...] | None:
    """Worker allocations that are pending or running; None when that is not known."""
    if not snapshot.certain:
        return None
    return tuple(w for w in snapshot.workers() if w.committed)


def numbers(tick: Tick) -> dict[str, int | float]:
    """What charts over time. A number that is not known is left out: never zero."""
    found: dict[str, int | float | None] = {}
    live = None if tick.snapshot is None else workers_live(tick.snapshot)
    if live is not None:
        kinds = [state_class(w.state or "") for w in live]
        found["live"] = len(live)
        found["ready"] = _count([w.ready for w in live])
        found["pending"] = kinds.count(StateClass.PENDING)
        found["draining"] = sum(1 for w in live if w.draining or w.drain_deadline is not None)
        running = [w for w, kind in zip(live, kinds, strict=True) if kind is StateClass.RUNNING]
        found["granted_gpus"] = _sum([w.granted_gpus for w in running])
    if tick.intents is not None:
        found["wanted"] = sum(intent.count for intent in tick.intents)
    if tick.result is not None:
        found["submitted"] = len(tick.result.submitted)
        found["released"] = len(tick.result.released) + len(tick.result.expired)
    remaining = (tick.work or {}).get("remaining")
    if isinstance(remaining, int | float):
        found["remaining"] = remaining
    return {name: value for name, value in found.items() if value is not None}


def _count(values: Sequence[bool | None]) -> int | None:
    return None if None in values else sum(1 for value in values if value)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def tick_metadata(tick: Tick) -> dict[str, dg.MetadataValue[Any]]:
    """The whole of a tick as Dagster metadata."""
    found: dict[str, dg.MetadataValue[Any]] = {"slurm/decision": _text(tick.decision)}
    if tick.snapshot is not None:
        # Second, because a run's event list cuts an event after some lines.
        found["slurm/allocations"] = allocation_table(tick.snapshot)
    for name, value in numbers(tick).items():
        found[f"slurm/{name}"] = (
            dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)
        )
    if tick.snapshot is not None:
        found["slurm/certain"] = dg.MetadataValue.bool(tick.snapshot.certain)
        if tick.snapshot.not_observed:
            found["slurm/not_observed"] = _text(" ".join(tick.snapshot.not_observed))
    if tick.result is not None and tick.result.held_back:
        found["slurm/held_back"] = _text(str(tick.result.held_back))
    if tick.problem is not None and tick.problem.detail:
        found["slurm/policy_error"] = _text(tick.problem.detail[-_MAX_TEXT:])
    return found


def _text(text: str) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.text(text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ...")


def allocation_table(snapshot: SessionSnapshot) -> dg.MetadataValue[Any]:
    """One row for each allocation; what ended is left out, except for the head.

    A run's event list is narrow, so a column in which nobody has anything to say is left out.
    """
    shown = [a for a in snapshot.allocations if a.committed is not False or a.role == "head"][:MAX_ROWS]
    rows = [_row(allocation, snapshot.observed_at) for allocation in shown]
    quiet = {name for name in _LEFT_OUT_WHEN_QUIET if not any(row[name] for row in rows)}
    columns = [dg.TableColumn(name, kind, description=said) for name, kind, said in _COLUMNS if name not in quiet]
    records = [dg.TableRecord({name: cell for name, cell in row.items() if name not in quiet}) for row in rows]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def _row(a: AllocationSnapshot, now: int) -> dict[str, Any]:
    nodes = ", ".join(a.nodes) or (None if a.requested_nodes is None else f"{a.requested_nodes} asked for")
    return {
        "job": a.slurm_job_id,
        "role": a.role,
        "intent": a.intent,
        "state": a.state,
        "reason": a.reason,
        "nodes": nodes,
        "GPUs": a.granted_gpus,
        "ready": a.ready,
        "draining": a.draining,
        "time left": duration(a.time_left_seconds),
        "deadline in": None if a.drain_deadline is None else duration(max(0, a.drain_deadline - now)),
    }


def duration(seconds: float | None) -> str | None:
    """Seconds as ``h:mm:ss``; None stays None."""
    if seconds is None:
        return None
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def essence(tick: Tick) -> tuple[object, ...]:
    """What makes a tick worth an event of its own: everything except for clocks that run."""
    snapshot = tick.snapshot
    seen: tuple[object, ...] = ()
    if snapshot is not None:
        rows = tuple(
            (a.slurm_job_id, a.role, a.state, a.reason, a.ready, a.draining, a.drain_deadline)
            for a in snapshot.allocations
        )
        seen = (snapshot.certain, snapshot.closing, bool(snapshot.not_observed), rows)
    held_back = () if tick.result is None else tick.result.held_back.codes
    problem = None if tick.problem is None else tick.problem.sentence
    return (seen, tick.intents, held_back, problem, tick.about_head, None if tick.snapshot else tick.decision)


class Events(Protocol):
    """Where records go: the event log of a run."""

    def record(self, sentence: str, metadata: Mapping[str, dg.MetadataValue[Any]]) -> None:
        """Add one event."""
        ...


class Recorder:
    """Writes ticks to the event log and adds them up. Bounded: a quiet run of a week does not flood the log."""

    def __init__(self, events: Events, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self._last: tuple[object, ...] | None = None
        self._last_at = 0.0
        self._began = clock()
        self.timeline = Timeline()
        self.usage = Usage()
        self.ticks = 0
        self.recorded = 0
        self.submitted: dict[str, None] = {}
        self.released: dict[str, None] = {}
        self.most_workers_live = 0
        self.most_workers_ready = 0
        self.most_granted_gpus: int | None = None

    def add(self, tick: Tick) -> None:
        """Take a tick in, and record it unless it says what the last one said."""
        self.ticks += 1
        self._add_up(tick)
        now, what = self._clock(), essence(tick)
        if not tick.acted and what == self._last and now - self._last_at < REPEAT_SECONDS:
            return
        self._last, self._last_at = what, now
        self.recorded += 1
        metadata = tick_metadata(tick)
        if tick.snapshot is not None and tick.snapshot.certain:
            # Last, because a run's event list cuts an event after some lines.
            metadata["slurm/timeline"] = dg.MetadataValue.md(small_picture(self.timeline))
        self._events.record(tick.decision, metadata)

    def summary(self) -> dict[str, dg.MetadataValue[Any]]:
        """What the whole of the ticks amounts to, up to now: hours and pictures."""
        self.usage.add(self._clock() - self._began, None)
        hours = {f"slurm/{name}": dg.MetadataValue.float(value) for name, value in self.usage.totals().items()}
        pictures = {"slurm/timeline": small_picture(self.timeline), "slurm/timeline_full": large_picture(self.timeline)}
        return {**hours, **{name: dg.MetadataValue.md(picture) for name, picture in pictures.items()}}

    def _add_up(self, tick: Tick) -> None:
        seconds = self._clock() - self._began
        wanted = None if tick.intents is None else sum(intent.count for intent in tick.intents)
        self.timeline.add(seconds, tick.snapshot, wanted)
        self.usage.add(seconds, tick.snapshot)
        if tick.result is not None:
            self.submitted.update(dict.fromkeys((*tick.result.submitted, *tick.result.recovered)))
            self.released.update(dict.fromkeys((*tick.result.released, *tick.result.expired)))
        seen = numbers(tick)
        # What was submitted in this tick is pending already; the next look may come after its end.
        counted = 0 if tick.result is None else len(tick.result.live)
        self.most_workers_live = max(self.most_workers_live, int(seen.get("live", 0)), counted)
        self.most_workers_ready = max(self.most_workers_ready, int(seen.get("ready", 0)))
        if "granted_gpus" in seen:
            self.most_granted_gpus = max(self.most_granted_gpus or 0, int(seen["granted_gpus"]))
