"""The session directory as the agent uses it: whole files in, whole files out, mtimes from the filesystem.

Network filesystems cache names and attributes. A file is therefore opened before its time is read, and a name that was
not found is looked up once more after its directory was listed.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from typing import Any

#: Read errors that pass: the file was replaced while it was being read.
PASSING_ERRORS = (errno.ESTALE, errno.EINTR, errno.EAGAIN)


@dataclass(frozen=True)
class Document:
    """A JSON object and the mtime of the file it was in (the filesystem's clock)."""

    content: dict[str, Any]
    modified_at: float


@dataclass(frozen=True)
class Session:
    """Paths below a session directory."""

    directory: str

    def path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)

    @property
    def ledger(self) -> str:
        return self.path("allocation.json")

    @property
    def closing(self) -> str:
        return self.path("closing")

    @property
    def lease(self) -> str:
        return self.path("lease")

    @property
    def token_file(self) -> str:
        return self.path("ray.token")

    def cluster(self, head_job_id: str) -> str:
        return self.path("cluster", f"{head_job_id}.json")

    def node(self, slurm_job_id: str, node: str, suffix: str = "json") -> str:
        return self.path("nodes", f"{slurm_job_id}.{node}.{suffix}")

    def submission(self, token: str, name: str) -> str:
        return self.path("submissions", token, name)

    def create_folders(self) -> None:
        for name in ("nodes", "cluster", "payloads"):
            os.makedirs(self.path(name), mode=0o700, exist_ok=True)


def read_bytes(path: str) -> tuple[bytes, float] | None:
    """Content and mtime; None when there is no such file.

    Raises:
        OSError: the file could not be read for another reason than being replaced meanwhile.
    """
    for attempt in range(3):
        try:
            with open(path, "rb") as stream:
                return stream.read(), os.fstat(stream.fileno()).st_mtime
        except FileNotFoundError:
            if attempt:
                return None
            _list_again(os.path.dirname(path))
        except OSError as error:
            if error.errno not in PASSING_ERRORS or attempt == 2:
                raise
    return None


def read_document(path: str) -> Document | None:
    """The JSON object in a file; None when it is missing, unreadable or not (yet) a whole JSON object."""
    try:
        found = read_bytes(path)
        content = None if found is None else json.loads(found[0])
    except (OSError, ValueError):
        return None
    if found is None or not isinstance(content, dict):
        return None
    return Document(content=content, modified_at=found[1])


def exists(path: str) -> bool | None:
    """Whether there is such a file; None when that cannot be told."""
    try:
        return read_bytes(path) is not None
    except IsADirectoryError:
        return True
    except OSError:
        return None


def modified_at(path: str) -> float | None:
    """mtime by the filesystem's clock; None when the file is missing or cannot be read."""
    try:
        found = read_bytes(path)
    except OSError:
        return None
    return None if found is None else found[1]


def write_document(path: str, content: dict[str, Any]) -> float:
    """Replace a file by a whole new one (readers see the old or the new content).

    Returns:
        Its mtime: the filesystem's clock now. Synced first: a network filesystem could answer with this host's clock.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(content, stream)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
        written_at = os.fstat(stream.fileno()).st_mtime
    os.replace(temporary, path)
    return written_at


def create_exclusively(path: str, text: str) -> bool:
    """Create a file that must not exist yet; False when it does."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    return True


def _list_again(directory: str) -> None:
    try:
        os.listdir(directory or ".")
    except OSError:
        return
