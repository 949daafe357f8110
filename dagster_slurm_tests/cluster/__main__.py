"""Command line: python -m dagster_slurm_tests.cluster up | down | status | shell | ray-python."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from .box import SlurmBox
from .errors import BoxError
from .places import base_directory, boxes
from .ray_python import ensure_ray_python
from .state import load_definition
from .teardown import tear_down


def _up(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    box = SlurmBox.start(
        arguments.dir,
        ray=arguments.ray,
        min_job_age_seconds=arguments.min_job_age_seconds,
        extra_slurm_conf=arguments.slurm_conf,
    )
    box.leave_running()
    settings = box.settings(ray=arguments.ray)
    if arguments.json:
        print(json.dumps(settings, indent=2))
        return 0
    print(f"The box is ready after {time.monotonic() - begun:.1f} s. Settings:")
    for name, value in settings.items():
        print(f"  {name} = {value!r}")
    print(f"End it with: python -m dagster_slurm_tests.cluster down --dir {box.directory}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    SlurmBox.attach(arguments.dir).down(keep=arguments.keep)
    return 0


def _status_of(directory: Path) -> tuple[dict[str, object], bool]:
    box = SlurmBox.attach(directory)
    running = box.daemons()
    try:
        nodes = box.node_states()
    except BoxError:
        nodes = {}
    healthy = None not in running.values() and bool(nodes)
    pids = {name: process.pid if process is not None else None for name, process in running.items()}
    return {**box.settings(ray=False), "daemons": pids, "nodes": nodes}, healthy


def _status(arguments: argparse.Namespace) -> int:
    directories = [Path(arguments.dir)] if arguments.dir else list(boxes())
    found = [_status_of(directory) for directory in directories]
    if arguments.json:
        print(json.dumps([status for status, _ in found], indent=2))
    elif not found:
        print(f"no box below {base_directory()}")
    else:
        for status, healthy in found:
            print(f"{status['directory']}: {'ready' if healthy else 'NOT READY'}")
            for title in ("daemons", "nodes"):
                entries = status[title]
                assert isinstance(entries, dict)
                print(f"  {title}: " + ", ".join(f"{name} {value or 'DOWN'}" for name, value in entries.items()))
    return 0 if found and all(healthy for _, healthy in found) else 1


def _shell(arguments: argparse.Namespace) -> int:
    known = [Path(arguments.dir)] if arguments.dir else list(boxes())
    if len(known) != 1:
        raise BoxError(f"there are {len(known)} boxes below {base_directory()}: choose one with --dir")
    box = SlurmBox.attach(known[0])
    entry = box.job_user_entry()
    environment = {**box.user_environment(), "TERM": os.environ.get("TERM", "dumb")}
    if os.geteuid() == 0:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    os.chdir(entry.pw_dir)
    shell = [entry.pw_shell or "/bin/sh", *(["-c", arguments.command] if arguments.command else [])]
    os.execve(shell[0], shell, environment)


def _ray_python(arguments: argparse.Namespace) -> int:
    print(ensure_ray_python())
    return 0


def _guard(arguments: argparse.Namespace) -> int:
    """Wait until the starter says a word (all is well) or dies without one: then end the box."""
    if not sys.stdin.buffer.readline() and (Path(arguments.dir) / "state.json").exists():
        tear_down(load_definition(Path(arguments.dir)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dagster_slurm_tests.cluster", description="A real Slurm in a box.")
    commands = parser.add_subparsers(required=True, metavar="command")
    up = commands.add_parser("up", help="start a box and print the settings of a SlurmComputeResource for it")
    up.add_argument("--dir", help="its directory, new or empty (default: a new one below /var/tmp/dagster-slurm)")
    up.add_argument("--json", action="store_true", help="print the settings as JSON")
    up.add_argument("--no-ray", dest="ray", action="store_false", help="leave out the Python with Ray (a minute)")
    up.add_argument("--min-job-age-seconds", type=int, default=30, help="how long ended jobs stay visible")
    up.add_argument("--slurm-conf", action="append", default=[], metavar="LINE", help="a further line of slurm.conf")
    up.set_defaults(act=_up)
    down = commands.add_parser("down", help="end a box and everything it started, remove its directory")
    down.add_argument("--dir", required=True)
    down.add_argument("--keep", action="store_true", help="keep the directory with its logs")
    down.set_defaults(act=_down)
    status = commands.add_parser("status", help="show a box, or all; exit status 1 when one is not ready")
    status.add_argument("--dir")
    status.add_argument("--json", action="store_true")
    status.set_defaults(act=_status)
    shell = commands.add_parser("shell", help="a shell as the job user")
    shell.add_argument("--dir", help="may be left out when there is one box")
    shell.add_argument("-c", dest="command", help="run this and end")
    shell.set_defaults(act=_shell)
    ray_python = commands.add_parser("ray-python", help="make the Python with Ray and print its path")
    ray_python.set_defaults(act=_ray_python)
    guard = commands.add_parser("guard")
    guard.add_argument("--dir", required=True)
    guard.set_defaults(act=_guard)
    return parser


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Run the command line and return the exit status."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status: int = arguments.act(arguments)
    except BoxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
