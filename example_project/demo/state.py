"""What a demo leaves on disk while it runs, so that the next one can end what a killed one left behind."""

from __future__ import annotations

import fcntl
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from dagster_slurm_tests.cluster.places import ensure_base_directory
from example_project.demo.errors import DemoError


@attrs.frozen
class DemoState:
    """The names by which everything of one demo is found.

    Attributes:
        mark: What its processes carry in their environment.
        box_directory: Where its Slurm lies.
    """

    mark: str
    box_directory: Path


def new_state(mark: str) -> DemoState:
    """A state with a directory that does not exist yet.

    It lies where every Slurm of the tests lies: the path has to be short (for sockets) and reachable by the
    unprivileged user that the jobs run as.
    """
    return DemoState(mark, ensure_base_directory() / f"demo-{secrets.token_hex(4)}")


def save_state(directory: Path, state: DemoState) -> None:
    """Write the state before anything is started."""
    content = {"mark": state.mark, "box_directory": str(state.box_directory)}
    temporary = directory / "demo.json.new"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(directory / "demo.json")


def load_state(directory: Path) -> DemoState | None:
    """What an earlier demo wrote; None when it ended properly or there was none."""
    try:
        content = json.loads((directory / "demo.json").read_text(encoding="utf-8"))
        return DemoState(content["mark"], Path(content["box_directory"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as problem:
        raise DemoError(f"{directory / 'demo.json'} cannot be read: {problem}. Delete it to go on.") from problem


def clear_state(directory: Path) -> None:
    """Forget the state: nothing of it is left."""
    (directory / "demo.json").unlink(missing_ok=True)


@contextmanager
def only_demo(directory: Path) -> Iterator[None]:
    """Hold the directory; DemoError when another demo holds it. The kernel lets go when this program ends."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"Another demo uses {directory}. End it, or choose another with --dir.") from None
        yield
