"""What people see of a finished search: tables, a small picture, and the full one."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from trials import Outcome, Trial

INLINE_LIMIT = 980
"""Characters of Markdown that Dagster's asset page shows without a click (measured on Dagster 1.13)."""

_SHADES = ("def", "bdf", "8ad", "46b", "137")
_SHOWN_RANGE = 0.03  # accuracies this far below the best all get the palest shade


def score_table(outcomes: Sequence[Outcome], rows: int = 20) -> Mapping[str, Any]:
    """The best `rows` tasks, best first, in the form Dagster Pipes takes for a table."""
    best_first = sorted(outcomes, key=lambda outcome: -outcome.score)[:rows]
    return _table(
        {"C": "float", "gamma": "float", "score": "float", "spread": "float", "cpu_seconds": "float", "job": "string"},
        [
            (o.trial.cost, o.trial.gamma, round(o.score, 5), round(o.spread, 5), o.cpu_seconds, o.slurm_job_id)
            for o in best_first
        ],
    )


def allocation_table(outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    """How many tasks ran in which allocation, in the form Dagster Pipes takes for a table."""
    groups: dict[tuple[str | None, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.slurm_job_id, outcome.node].append(outcome)
    return _table(
        {"job": "string", "node": "string", "tasks": "int", "cpu_seconds": "float"},
        [
            (job, node, len(members), round(sum(member.cpu_seconds for member in members), 1))
            for (job, node), members in sorted(groups.items(), key=lambda item: str(item[0]))
        ],
    )


def _table(columns: Mapping[str, str], rows: Sequence[tuple[object, ...]]) -> Mapping[str, Any]:
    schema = [{"name": name, "type": kind} for name, kind in columns.items()]
    return {"schema": schema, "records": [dict(zip(columns, row, strict=True)) for row in rows]}


def small_picture(outcomes: Sequence[Outcome]) -> str:
    """Markdown of at most `INLINE_LIMIT` characters: a map of the scores, or its caption alone when too large."""
    costs, gammas = _axes(outcomes)
    caption = (
        f"Down: C from {costs[0]:g} to {costs[-1]:g}. Across: gamma from {gammas[0]:g} to {gammas[-1]:g}. "
        "Darker is more accurate, the ring is the best."
    )
    picture = _svg(outcomes, costs, gammas)
    encoded = base64.b64encode(picture.encode()).decode()
    markdown = f"![scores](data:image/svg+xml;base64,{encoded})\n\n{caption}"
    return markdown if len(markdown) <= INLINE_LIMIT else caption


def _axes(outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
    return sorted({o.trial.cost for o in outcomes}), sorted({o.trial.gamma for o in outcomes})


def _svg(outcomes: Sequence[Outcome], costs: Sequence[float], gammas: Sequence[float]) -> str:
    best = max(outcomes, key=lambda outcome: outcome.score)
    shades: dict[tuple[int, int], int] = {}
    for outcome in outcomes:
        step = int((best.score - outcome.score) / _SHOWN_RANGE * len(_SHADES))
        shades[_cell(outcome.trial, costs, gammas)] = max(0, len(_SHADES) - 1 - step)
    strokes: dict[int, str] = {}
    for row in range(len(costs)):
        column = 0
        while column < len(gammas):
            shade, begin = shades.get((column, row)), column
            while column < len(gammas) and shades.get((column, row)) == shade:
                column += 1
            if shade is not None:
                strokes[shade] = strokes.get(shade, "") + f"M{begin} {row}h{column - begin}"
    paths = "".join(f'<path stroke="#{_SHADES[shade]}" d="{lines}"/>' for shade, lines in sorted(strokes.items()))
    x, y = _cell(best.trial, costs, gammas)
    # Horizontal strokes of width 1 are the shortest way to write cells: cell (x, y) is centred on (x + .5, y).
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{24 * len(gammas)}" height="{24 * len(costs)}" '
        f'viewBox="0 -.5 {len(gammas)} {len(costs)}">{paths}'
        f'<circle cx="{x + 0.5}" cy="{y}" r=".3" fill="none" stroke="#fd0" stroke-width=".15"/></svg>'
    )


def _cell(trial: Trial, costs: Sequence[float], gammas: Sequence[float]) -> tuple[int, int]:
    return gammas.index(trial.gamma), costs.index(trial.cost)


def full_picture(outcomes: Sequence[Outcome]) -> bytes:
    """The map of the scores with axes and numbers, as PNG."""
    costs, gammas = _axes(outcomes)
    scores = [[float("nan")] * len(gammas) for _ in costs]
    for outcome in outcomes:
        x, y = _cell(outcome.trial, costs, gammas)
        scores[y][x] = outcome.score
    best = max(outcome.score for outcome in outcomes)
    figure = Figure(figsize=(1.2 + 0.75 * len(gammas), 1.2 + 0.4 * len(costs)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(scores, cmap="Blues", vmin=best - 2 * _SHOWN_RANGE, vmax=best, aspect="auto")
    for y, line in enumerate(scores):
        for x, score in enumerate(line):
            colour = "white" if score > best - _SHOWN_RANGE else "black"
            axes.text(x, y, f"{score:.3f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(gammas)), [f"{gamma:g}" for gamma in gammas])
    axes.set_yticks(range(len(costs)), [f"{cost:g}" for cost in costs])
    axes.set(xlabel="gamma", ylabel="C", title=f"Accuracy on the digits, best {best:.4f}")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=72, pil_kwargs={"optimize": True})
    return stream.getvalue()


def png_markdown(content: bytes) -> str:
    """A picture as Markdown. Dagster hides one this long behind a link."""
    return f"![scores](data:image/png;base64,{base64.b64encode(content).decode()})"
