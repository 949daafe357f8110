"""GPU-hours and node-hours, added up from tick to tick. What is not known makes a sum unknown, never smaller."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.slurm.states import StateClass, state_class


@attrs.frozen(kw_only=True)
class _Rates:
    gpus_asked: int | None
    gpus_used: int | None
    nodes_used: int


def _rates(allocations: Iterable[AllocationSnapshot]) -> _Rates:
    live = [a for a in allocations if a.committed]
    running = [a for a in live if state_class(a.state or "") is StateClass.RUNNING]
    asked = [
        None if a.requested_gpus_per_node is None else a.requested_gpus_per_node * (a.requested_nodes or 1)
        for a in live
    ]
    return _Rates(
        gpus_asked=_sum(asked),
        gpus_used=_sum([a.granted_gpus for a in running]),
        nodes_used=sum(len(a.nodes) for a in running),
    )


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class Usage:
    """Sums of one step, as exact as its ticks are close. The head counts as well as the workers."""

    def __init__(self) -> None:
        self._rates: _Rates | None = None
        self._since = 0.0
        self._asked: float | None = 0.0
        self._used: float | None = 0.0
        self._nodes = 0.0

    def add(self, seconds: float, snapshot: SessionSnapshot | None) -> None:
        """Take a tick in; what was last seen held until now. A tick that knows nothing changes nothing."""
        rates, hours = self._rates, (seconds - self._since) / 3600
        self._since = seconds
        if rates is not None:
            self._asked = _plus(self._asked, rates.gpus_asked, hours)
            self._used = _plus(self._used, rates.gpus_used, hours)
            self._nodes += rates.nodes_used * hours
        if snapshot is not None and snapshot.certain:
            self._rates = _rates(snapshot.allocations)

    def totals(self) -> dict[str, float]:
        """The sums that are known, by name."""
        if self._rates is None:
            return {}
        found = {"gpu_hours_asked": self._asked, "gpu_hours_used": self._used, "node_hours_used": self._nodes}
        return {name: round(value, 4) for name, value in found.items() if value is not None}


def _plus(total: float | None, rate: int | None, hours: float) -> float | None:
    return None if total is None or rate is None else total + rate * hours
