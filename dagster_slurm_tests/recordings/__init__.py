"""Replies of real Slurm commands, kept as files, one folder for each Slurm version; `record` makes them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent
_OUT, _ERR = "--- stdout\n", "--- stderr\n"


@dataclass(frozen=True)
class Recording:
    """One command and its reply. Times in it are seconds since 1970."""

    command: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """Standard output and error in one text, as the remote scripts collect them."""
        return self.stderr + self.stdout

    def write(self, path: Path) -> None:
        """Keep it as a file; control characters stay as they are."""
        head = f"$ {shlex.join(self.command)}\nexit {self.status}\n"
        path.write_bytes((head + _OUT + self.stdout + "\n" + _ERR + self.stderr).encode())


def versions() -> tuple[str, ...]:
    """The Slurm versions that there are recordings of."""
    return tuple(sorted(path.name for path in DIRECTORY.iterdir() if path.is_dir() and path.name[0].isdigit()))


def names(version: str) -> tuple[str, ...]:
    """The recordings of one version."""
    return tuple(sorted(path.stem for path in (DIRECTORY / version).glob("*.txt")))


def read(version: str, name: str) -> Recording:
    """Read one recording back."""
    text = (DIRECTORY / version / f"{name}.txt").read_bytes().decode()
    head, _, rest = text.partition(_OUT)
    stdout, _, stderr = rest.rpartition("\n" + _ERR)
    command, status = head.rstrip("\n").rsplit("\nexit ", 1)
    return Recording(tuple(shlex.split(command.removeprefix("$ "))), int(status), stdout, stderr)
