"""What a box keeps in its directory, so that any process can find it again and end it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from .daemons import Process, is_alive
from .definition import MARKER, BoxDefinition, NodeGroup, Ports
from .errors import BoxError
from .packages import PROGRAMS, search_path
from .rendering import daemon_commands

SCHEMA_VERSION = 1


def _write(path: Path, content: object) -> None:
    draft = path.with_name(path.name + ".new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file, indent=2)
    draft.rename(path)


def save_definition(definition: BoxDefinition) -> None:
    """Write the definition of a box to its directory, readable by its owner only."""
    content = {"schema_version": SCHEMA_VERSION, "definition": dataclasses.asdict(definition)}
    _write(Path(definition.directory) / "state.json", content)


def load_definition(directory: Path) -> BoxDefinition:
    """Return the definition of the box in a directory.

    Raises:
        BoxError: There is no box, or a newer version wrote it.
    """
    path = directory.absolute() / "state.json"
    if not path.exists():
        raise BoxError(f"there is no box in {directory}")
    content = json.loads(path.read_text())
    if content["schema_version"] != SCHEMA_VERSION:
        raise BoxError(f"{path} has version {content['schema_version']}, this program knows {SCHEMA_VERSION}")
    fields = content["definition"]
    return BoxDefinition(
        **{
            **fields,
            "ports": Ports(**fields["ports"]),
            "groups": tuple(NodeGroup(**group) for group in fields["groups"]),
            "accounts": tuple(fields["accounts"]),
            "qos": tuple(fields["qos"]),
            "extra_slurm_conf": tuple(fields["extra_slurm_conf"]),
        }
    )


def daemon_names(definition: BoxDefinition) -> tuple[str, ...]:
    """Return the names of the box's daemons in the order of their start."""
    return tuple(daemon_commands(definition, dict.fromkeys(PROGRAMS, "")))


def _record(definition: BoxDefinition, name: str) -> Path:
    return Path(definition.directory) / "run" / f"{name}.json"


def record_process(definition: BoxDefinition, name: str, process: Process) -> None:
    """Remember which process a daemon is."""
    _write(_record(definition, name), dataclasses.asdict(process))


def recorded_processes(definition: BoxDefinition) -> dict[str, Process | None]:
    """Return the box's daemons by name in the order of their start, None for one that does not run."""
    found: dict[str, Process | None] = {}
    for name in daemon_names(definition):
        record = _record(definition, name)
        process = Process(**json.loads(record.read_text())) if record.exists() else None
        found[name] = process if process is not None and is_alive(process) else None
    return found


def environment(definition: BoxDefinition) -> dict[str, str]:
    """Return the environment of the box's daemons and of its administrator's commands."""
    return {
        "PATH": search_path(),
        "HOME": definition.directory,
        "LC_ALL": "C.UTF-8",
        "SLURM_CONF": definition.slurm_conf,
        MARKER: definition.directory,
    }
