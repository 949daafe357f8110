"""``python -m example_project.demo``: the whole demo in the terminal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from dagster_slurm_tests.cluster.errors import BoxError
from example_project.demo.errors import DemoError, Stopped
from example_project.demo.session import Demo, DemoOptions
from example_project.demo.state import only_demo


def parse_options(argv: Sequence[str]) -> DemoOptions:
    """The command line, with defaults from the environment that ``make`` passes on."""
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(".demo"), help="logs and DAGSTER_HOME (default: ./.demo)")
    parser.add_argument("--port", type=int, default=int(os.environ.get("DEMO_PORT") or 3000))
    parser.add_argument(
        "--oneshot",
        action="store_true",
        default=os.environ.get("ONESHOT", "") not in ("", "0"),
        help="end after the run, with status 0 only if everything is as it should be",
    )
    parser.add_argument("--limit", type=float, default=600.0, help="longest duration of the run in seconds")
    arguments = parser.parse_args(argv)
    return DemoOptions(
        directory=arguments.dir.resolve(),
        port=arguments.port,
        oneshot=arguments.oneshot,
        run_limit_seconds=arguments.limit,
    )


def stop_on_signal(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an orderly end."""
    raise Stopped(signal.Signals(number).name)


def main(argv: Sequence[str]) -> int:
    """Run the demo; the exit status is 0 when nothing failed, 1 when something did, 130 when it was cut short."""
    options = parse_options(argv)
    # A terminal that closes and a supervisor that ends us get the same clean end as Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop_on_signal)
    try:
        with only_demo(options.directory):
            problems = Demo(options).run()
    except (DemoError, BoxError) as problem:
        print(f"\nThe demo failed: {problem}", file=sys.stderr)
        return 1
    except Stopped as reason:
        print(f"\nThe demo was cut short by {reason}.", file=sys.stderr)
        return 130
    for sentence in problems:
        print(f"PROBLEM: {sentence}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
