"""Where boxes live on a machine, and which ports belong to which box."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from .definition import Ports
from .errors import BoxError

# Below the ports that Linux gives to clients by default (ip_local_port_range starts at 32768).
_FIRST_PORT, _LAST_PORT = 20000, 32000
_BLOCK = 40


def base_directory() -> Path:
    """Return the directory below which boxes live; every user can reach it."""
    name = "dagster-slurm" if os.geteuid() == 0 else f"dagster-slurm-{os.geteuid()}"
    return Path("/var/tmp") / name


def ensure_base_directory() -> Path:
    """Create the base directory if needed and return it.

    Raises:
        BoxError: It exists and is not a directory of this user.
    """
    base = base_directory()
    base.mkdir(mode=0o755, exist_ok=True)
    status = base.lstat()
    if base.is_symlink() or status.st_uid != os.geteuid():
        raise BoxError(f"{base} has to be a directory owned by user id {os.geteuid()}: remove it, then try again")
    base.chmod(0o755)
    return base


def boxes() -> Iterator[Path]:
    """Yield the directories of this user's boxes at the default place."""
    yield from sorted(path.parent for path in base_directory().glob("*/state.json"))


def _claims() -> Path:
    directory = ensure_base_directory() / "ports"
    directory.mkdir(exist_ok=True)
    return directory


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        # Daemons set this too; without it a connection that just closed would look like a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def claim_ports(box: Path, count: int) -> Ports:
    """Give a block of free ports to a box until `release_ports`; two boxes never get the same block.

    A block whose box has no directory any more is free again.

    Raises:
        BoxError: No block is free, or the box needs more ports than a block has.
    """
    if count > _BLOCK:
        raise BoxError(f"a box has at most {_BLOCK} ports, this one needs {count}: fewer nodes")
    blocks = list(range(_FIRST_PORT, _LAST_PORT - _BLOCK, _BLOCK))
    # Not the seedable generator: tests seed it, and two boxes would always try the same block first.
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        claim = _claims() / str(first)
        with contextlib.suppress(FileNotFoundError):
            if not Path(claim.read_text() or "/").exists():
                claim.unlink()
        try:
            # Linked when complete, so that nobody reads a claim without its owner.
            draft = claim.with_name(f"{first}.{os.getpid()}.new")
            draft.write_text(str(box))
            os.link(draft, claim)
        except FileExistsError:
            continue
        finally:
            draft.unlink(missing_ok=True)
        if all(_is_free(port) for port in range(first, first + count)):
            return Ports(first)
        claim.unlink()
    raise BoxError(f"no {count} consecutive free ports between {_FIRST_PORT} and {_LAST_PORT}")


def release_ports(box: Path, ports: Ports) -> None:
    """Give the ports of a box back; nothing happens when they belong to another box."""
    claim = _claims() / str(ports.first)
    with contextlib.suppress(FileNotFoundError):
        if claim.read_text() == str(box):
            claim.unlink()
