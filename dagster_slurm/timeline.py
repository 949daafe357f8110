"""What the allocations of a step did over time: kept tick by tick, drawn small and large. No clock, no Dagster.

A picture is an SVG in a data URI in Markdown. Dagster shows Markdown of up to about a thousand characters at once and
hides longer text behind a link, hence the small picture beside the large one.
"""

from __future__ import annotations

import base64
import bisect
import operator
from collections.abc import Sequence

import attrs

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.slurm.states import StateClass, state_class

#: What Dagster shows without a click, with a little room.
SMALL_LIMIT = 980
LARGE_LIMIT = 40_000
#: Allocations whose time is kept; of a long run the latest.
MOST_ROWS = 300
_MOST_CHANGES = 400

PENDING, RUNNING, READY, DRAINING = "pending", "running", "ready", "draining"
# Told apart by people who see few colours, too: they differ in brightness.
COLOURS = {PENDING: "#fb0", RUNNING: "#39f", READY: "#273", DRAINING: "#b4b"}
NAMES = {PENDING: "yellow", RUNNING: "blue", READY: "green", DRAINING: "purple"}
WANTED, LIVE = "#d22", "#aaa"
_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800)


@attrs.define
class Row:
    """One allocation: when its kind changed, None from its end on."""

    name: str
    changes: list[tuple[float, str | None]] = attrs.field(factory=list)

    def at(self, seconds: float) -> str | None:
        """Its kind at a time."""
        index = bisect.bisect_right(self.changes, seconds, key=operator.itemgetter(0))
        return self.changes[index - 1][1] if index else None

    def put(self, seconds: float, kind: str | None) -> None:
        """Its kind from now on."""
        if (self.changes[-1][1] if self.changes else None) != kind:
            self.changes.append((seconds, kind))


@attrs.define
class Count:
    """A number over time."""

    changes: list[tuple[float, int]] = attrs.field(factory=list)

    def at(self, seconds: float) -> int | None:
        """The number at a time; None before the first."""
        index = bisect.bisect_right(self.changes, seconds, key=operator.itemgetter(0))
        return self.changes[index - 1][1] if index else None

    def thinned(self, end: float) -> list[tuple[float, int]]:
        """Its changes, or as many samples as a picture can show."""
        if len(self.changes) <= _MOST_CHANGES:
            return self.changes
        times = [end * number / _MOST_CHANGES for number in range(_MOST_CHANGES + 1)]
        return [(time, value) for time in times if (value := self.at(time)) is not None]

    def put(self, seconds: float, value: int) -> None:
        """The number from now on."""
        if not self.changes or self.changes[-1][1] != value:
            self.changes.append((seconds, value))


@attrs.define
class Timeline:
    """All of it. Times are seconds since the beginning.

    Attributes:
        rows: Allocations, in the order in which they were first seen.
        wanted: Worker allocations that the policy asked for.
        live: Worker allocations that were pending or running.
        end: Time of the last tick.
        left_out: Allocations that were too many to be kept.
    """

    rows: dict[str, Row] = attrs.field(factory=dict)
    wanted: Count = attrs.field(factory=Count)
    live: Count = attrs.field(factory=Count)
    end: float = 0.0
    left_out: int = 0

    def add(self, seconds: float, snapshot: SessionSnapshot | None, wanted: int | None) -> None:
        """Take a tick in. What it does not know goes on as it was."""
        self.end = max(self.end, seconds)
        if wanted is not None:
            self.wanted.put(seconds, wanted)
        if snapshot is None or not snapshot.certain:
            return
        self.live.put(seconds, sum(1 for worker in snapshot.workers() if worker.committed))
        seen = set()
        for allocation in snapshot.allocations:
            job, kind = allocation.slurm_job_id, kind_of(allocation)
            if job is None or (kind is None and job not in self.rows):
                continue
            seen.add(job)
            self.rows.setdefault(job, Row(f"{job} {allocation.role}")).put(seconds, kind)
        for job, row in self.rows.items():
            if job not in seen:
                row.put(seconds, None)
        ended = [job for job, row in self.rows.items() if row.changes[-1][1] is None]
        for job in ended[: max(0, len(self.rows) - MOST_ROWS)]:
            del self.rows[job]
            self.left_out += 1

    @property
    def seconds(self) -> float:
        """Its length; never zero, so that it can be drawn."""
        return max(1.0, self.end)


def kind_of(allocation: AllocationSnapshot) -> str | None:
    """How an allocation is drawn; None when it has ended."""
    if allocation.committed is False:
        return None
    if allocation.draining or allocation.drain_deadline is not None:
        return DRAINING
    if state_class(allocation.state or "") is StateClass.PENDING:
        return PENDING
    return READY if allocation.ready else RUNNING


def small_picture(timeline: Timeline) -> str:
    """A picture in Markdown that Dagster shows at once, as detailed as the limit allows."""
    for rows, columns in _DETAILS:
        text = _small(timeline, rows, columns)
        if len(text) <= SMALL_LIMIT:
            return text
    raise AssertionError("two lines of 21 columns fit")


#: Narrow enough for the column of values on an asset's page.
_SMALL_WIDTH = 294
#: Rows and columns that are tried, until the text is short enough.
_DETAILS = ((40, 294), (40, 98), (40, 49), (40, 42), (14, 42), (12, 21), (9, 21), (6, 21), (3, 21), (0, 21))


def _small(timeline: Timeline, most_rows: int, columns: int) -> str:
    chosen = list(timeline.rows.values())[-most_rows:] if most_rows else []
    top = 6 * len(chosen)
    width = _SMALL_WIDTH // columns
    times = [timeline.seconds * (column + 0.5) / columns for column in range(columns)]
    drawn: dict[str, list[str]] = {kind: [] for kind in COLOURS}
    for number, row in enumerate(chosen):
        for kind, first, length in _runs([row.at(time) for time in times]):
            drawn[kind].append(f"M{first * width} {6 * number + 3}h{length * width}")
    body = "".join(f"<path stroke='{COLOURS[kind]}' d='{''.join(d)}'/>" for kind, d in drawn.items() if d)
    most = _most(timeline)
    lines = "".join(
        f"<path stroke='{colour}' stroke-width='{thick}' d='{_steps(values, width, top + 32, most)}'/>"
        for colour, thick, count in ((LIVE, 3, timeline.live), (WANTED, 1, timeline.wanted))
        for values in [[count.at(time) for time in times]]
        if count.changes
    )
    height = top + 34
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_SMALL_WIDTH}' height='{height}' "
        f"fill='none' stroke-width='4'>{body}{lines}</svg>"
    )
    shown = [f"{NAMES[kind]} {kind}" for kind, d in drawn.items() if d]
    hidden = len(timeline.rows) + timeline.left_out - len(chosen)
    left_out = f" ({hidden} more not shown)" if hidden else ""
    caption = f"{span(timeline.seconds)}{left_out}. {', '.join(shown)}. Below: red wanted, grey live; top {most}."
    return f"![timeline]({_uri(svg)})\n\n{caption}"


def _runs(values: Sequence[str | None]) -> list[tuple[str, int, int]]:
    """Runs of the same value, as (value, first, length); None is left out."""
    runs: list[tuple[str, int, int]] = []
    for index, value in enumerate(values):
        if value is None:
            continue
        if runs and runs[-1][0] == value and runs[-1][1] + runs[-1][2] == index:
            runs[-1] = (value, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((value, index, 1))
    return runs


def _steps(values: Sequence[int | None], width: int, bottom: int, most: int) -> str:
    """A line in steps, 24 high; it begins where a value is known."""
    path, last, column = "", None, 0
    for index, value in enumerate([*values, None]):
        if value == last and index < len(values):
            continue
        if last is not None:
            path += f"h{(index - column) * width}"
        if value is not None:
            y = bottom - round(24 * value / most)
            path += f"M{index * width} {y}" if last is None else f"V{y}"
        last, column = value, index
    return path


def _most(timeline: Timeline) -> int:
    return max(1, *(value for count in (timeline.wanted, timeline.live) for _, value in count.changes), 1)


def _uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def span(seconds: float) -> str:
    """A length of time for people, with its unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


# -- large ---------------------------------------------------------------------------------------------

_LEFT, _WIDTH, _ROW, _CHART = 130, 760, 14, 90


def large_picture(timeline: Timeline) -> str:
    """The whole picture in Markdown: a line for each allocation, a time axis, and the two counts."""
    for rows in (80, 40, 20, 10):
        text = f"![timeline]({_uri(_large(timeline, rows))})"
        if len(text) <= LARGE_LIMIT:
            return text
    return f"![timeline]({_uri(_large(timeline, 0))})"


def _large(timeline: Timeline, most_rows: int) -> str:
    chosen = list(timeline.rows.values())[-most_rows:] if most_rows else []
    hidden = len(timeline.rows) + timeline.left_out - len(chosen)
    parts, y = _legend(timeline, hidden), 40
    scale = _WIDTH / timeline.seconds
    bottom = y + _ROW * len(chosen) + 30 + _CHART
    parts += _axis(timeline.seconds, scale, y - 4, bottom)
    for row in chosen:
        parts.append(f"<text x='{_LEFT - 8}' y='{y + 10}' text-anchor='end'>{row.name}</text>")
        for index, (since, kind) in enumerate(row.changes):
            if kind is not None:
                until = row.changes[index + 1][0] if index + 1 < len(row.changes) else timeline.end
                width = max(1.5, (until - since) * scale)
                x = _LEFT + since * scale
                fill = COLOURS[kind]
                parts.append(f"<rect x='{x:.1f}' y='{y + 1}' width='{width:.1f}' height='{_ROW - 3}' fill='{fill}'/>")
        y += _ROW
    parts += _chart(timeline, scale, bottom)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_LEFT + _WIDTH + 50}' height='{bottom + 24}' "
        f"font-family='sans-serif' font-size='11' fill='#333'>"
        f"<rect width='100%' height='100%' fill='#fff'/>{''.join(parts)}</svg>"
    )


def _legend(timeline: Timeline, hidden: int) -> list[str]:
    parts, x = [], _LEFT
    for kind, colour in COLOURS.items():
        parts.append(
            f"<rect x='{x}' y='8' width='12' height='10' fill='{colour}'/><text x='{x + 16}' y='17'>{kind}</text>"
        )
        x += 80
    for name, colour in (("wanted workers", WANTED), ("live workers", LIVE)):
        parts.append(
            f"<path d='M{x} 13h12' stroke='{colour}' stroke-width='2'/><text x='{x + 16}' y='17'>{name}</text>"
        )
        x += 115
    if hidden:
        parts.append(f"<text x='{x}' y='17'>{hidden} earlier allocations not shown</text>")
    return parts


def _axis(seconds: float, scale: float, top: int, bottom: int) -> list[str]:
    step = next((step for step in _STEPS if seconds / step <= 8), _STEPS[-1])
    parts = []
    for number in range(int(seconds // step) + 1):
        x = _LEFT + number * step * scale
        label = "0" if number == 0 else span(number * step)
        parts.append(
            f"<path d='M{x:.1f} {top}V{bottom}' stroke='#ddd'/>"
            f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>{label}</text>"
        )
    return parts


def _chart(timeline: Timeline, scale: float, bottom: int) -> list[str]:
    most = _most(timeline)
    parts = [f"<path d='M{_LEFT} {bottom}h{_WIDTH}' stroke='#999'/>"]
    for value in sorted({0, most}):
        y = bottom - _CHART * value / most
        parts.append(f"<text x='{_LEFT - 8}' y='{y + 4:.0f}' text-anchor='end'>{value} workers</text>")
    for colour, thick, count in ((LIVE, 4, timeline.live), (WANTED, 1.5, timeline.wanted)):
        path = ""
        for since, value in count.thinned(timeline.end):
            x, y = _LEFT + since * scale, bottom - _CHART * value / most
            path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
        if path:
            path += f"H{_LEFT + timeline.end * scale:.1f}"
            parts.append(f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='{thick}'/>")
    return parts
