"""The sessions below one base as a whole, whoever made them."""

from __future__ import annotations

from dagster_slurm.remote.housekeeping import (
    FoundSession,
    check_done,
    list_script,
    read_list,
    remove_script,
    seal_script,
)
from dagster_slurm.remote.shell import RemoteShell


def find_sessions(shell: RemoteShell, remote_base: str) -> tuple[FoundSession, ...]:
    """Every session that has a directory.

    Raises:
        RemoteError: the login node could not be asked.
    """
    return read_list(shell.run(list_script(remote_base)), shell.address)


def seal_session(shell: RemoteShell, session_dir: str) -> None:
    """Note that nothing of an ended session is left, and remove its secret.

    Raises:
        RemoteError, SessionDirectoryUnsafe: it was not noted; do it again later.
    """
    check_done(shell.run(seal_script(session_dir)), "seal", f"sealing {session_dir}", shell.address)


def remove_session(shell: RemoteShell, remote_base: str, session_id: str) -> None:
    """Remove the directory of a sealed session; one that is not sealed stays.

    Raises:
        RemoteError, SessionDirectoryUnsafe: it may be there in part; do it again later.
    """
    reply = shell.run(remove_script(remote_base, session_id))
    check_done(reply, "remove", f"removing the session {session_id}", shell.address)
