"""Carrying a small file tree to the login node inside a script."""

from __future__ import annotations

import base64
import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.remote.frames import quote

LIMIT_BYTES = 32 * 1024 * 1024
EXCLUDED = frozenset({"__pycache__", ".git"})


def pack(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Make a ``tar.gz`` of a file, or of what a directory contains. The same content gives the same bytes.

    ``__pycache__`` and ``.git`` are left out. Files keep only whether they are executable. Symbolic links are kept
    when they lead to a place inside the directory by a relative path.

    Args:
        path: The file or directory.
        limit_bytes: Largest sum of file sizes, before compression.

    Raises:
        ConfigurationError: The path is missing, unreadable, too large, or holds something that cannot be carried.
    """
    root = Path(os.path.realpath(path))
    remaining = limit_bytes
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        try:
            for name, entry in _entries(root):
                info, content = _member(name, entry, root, remaining)
                remaining -= len(content)
                archive.addfile(info, io.BytesIO(content))
        except _TooLarge as error:
            raise ConfigurationError(
                f"{path} holds more than {limit_bytes} bytes.",
                remedy="Put large data on the cluster's own storage and pass its path.",
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{error.filename or path} cannot be read: {error.strerror}.") from error
    return buffer.getvalue()


def unpack_commands(data: bytes, target_dir: str) -> str:
    """Shell text that unpacks what ``pack`` made; its exit status is 0 when everything is in place.

    Files arrive as 0600, or 0700 when they are executable, and directories as 0700, with the time of arrival.

    Args:
        data: The archive.
        target_dir: Directory to unpack into; made, with its parents, when missing.
    """
    target = quote(target_dir)
    # A word for the builtin printf, not a here-document: some shells write those to /tmp, which can be full.
    # -m: site cleaners remove what looks old. -o: root would otherwise restore owners.
    return (
        f"mkdir -p -- {target} &&\n"
        f"printf %s '{base64.b64encode(data).decode()}' | base64 -d | tar -x -z -o -m -f - -C {target}\n"
    )


class _TooLarge(Exception):
    pass


def _entries(root: Path) -> list[tuple[str, Path]]:
    if not root.is_dir():
        return [(root.name, root)]
    found: list[tuple[str, Path]] = []

    def fail(error: OSError) -> None:
        raise error

    for folder, directories, files in os.walk(root, onerror=fail):
        directories[:] = [name for name in directories if name not in EXCLUDED]
        for name in (*directories, *files):
            entry = Path(folder, name)
            if name not in EXCLUDED:
                found.append((entry.relative_to(root).as_posix(), entry))
    return sorted(found)


def _member(name: str, entry: Path, root: Path, remaining: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    status = entry.lstat()
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, _inner_target(entry, root), 0o777
        return info, b""
    if stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o700
        return info, b""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{entry} is neither a file, a directory nor a link; it cannot be carried.")
    if status.st_size > remaining:
        raise _TooLarge
    with entry.open("rb") as stream:
        content = stream.read(remaining + 1)
    if len(content) > remaining:
        raise _TooLarge
    info.size, info.mode = len(content), 0o700 if status.st_mode & 0o100 else 0o600
    return info, content


def _inner_target(link: Path, root: Path) -> str:
    target = os.readlink(link)
    if os.path.isabs(target) or not Path(os.path.realpath(link)).is_relative_to(root):
        raise ConfigurationError(
            f"The symbolic link {link} leads to {target}, outside of what is carried.",
            remedy="Copy the file to its place, or make the link relative to a file inside the directory.",
        )
    return target
