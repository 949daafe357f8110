"""``make bench``: the targets on a real Slurm, as a table. Exit status 1 when one is missed."""

from __future__ import annotations

import argparse
import sys

from tabulate import tabulate

from dagster_slurm_tests.bench import acting, looking, with_ray
from dagster_slurm_tests.bench.measuring import Bench, Row
from dagster_slurm_tests.cluster import SlurmBox

PARTS = {
    "inspect": looking.inspecting,
    "estimate": looking.estimating,
    "silent": looking.silent_controller,
    "import": looking.importing,
    "reconcile": acting.reconciling,
    "processes": acting.many_processes,
    "end": acting.ending,
    "ray": with_ray.starting_and_draining,
    "payload": with_ray.payloads,
}


def main() -> int:
    """Measure what was named, or everything."""
    parser = argparse.ArgumentParser(prog="python -m dagster_slurm_tests.bench", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="what to measure; everything when left out")
    names = parser.parse_args().part or list(PARTS)
    rows: list[Row] = []
    with SlurmBox.start() as box:
        for name in names:
            for row in PARTS[name](Bench(box)):
                print(f"{row.target}  {row.what}: {row.measured}", file=sys.stderr, flush=True)
                rows.append(row)
    rows.sort(key=lambda row: int(row.target[1:]))
    lines = [(row.target, row.what, row.measured, row.wanted, "" if row.met else "MISSED") for row in rows]
    print(tabulate(lines, headers=("", "what", "measured", "target", "")))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
