"""What a session needs to know about its place on the cluster, as values."""

from __future__ import annotations

import re

import attrs

from dagster_slurm.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def session_id_for(run_id: str, session_name: str | None) -> str:
    """Name of a run's session, which is also its directory's and part of its job name.

    Raises:
        ConfigurationError: a part has characters that a path or a Slurm filter would split on.
    """
    for field, value in (("run_id", run_id), ("session_name", session_name)):
        if value is not None and (not _NAME.fullmatch(value) or len(value) > 64):
            raise ConfigurationError(
                f"{value!r} must be at most 64 letters, digits, '_', '.' or '-', beginning with a letter or digit",
                field=field,
            )
    return run_id if session_name is None else f"{run_id}-{session_name}"


def job_name_for(session_id: str) -> str:
    """The Slurm job name that all allocations of a session share."""
    return f"dagster-{session_id}"


@attrs.frozen(kw_only=True)
class SessionSettings:
    """Where a session lives and how its jobs start.

    Attributes:
        session_id: Name of the session.
        session_dir: Its directory on the cluster's shared filesystem, absolute.
        python: Python with Ray on the compute nodes.
        setup: Shell lines that run in each batch script before the agent (``module load`` and the like).
        container_command: Words before the Python of the allocations, such as ``("apptainer", "exec", "image.sif")``;
            that Python is then the container's, and the nodes need a ``python3`` of their own to start it.
        network_interface: Whose IPv4 address Ray uses on each node, such as ``ib0``; None: the one to the head.
        cluster: Slurm cluster to name in every command; None for the default one.
        rejoin_timeout_seconds: A worker without a head leaves after this long.
        orphan_timeout_seconds: Allocations end themselves after this long without a sign from a client; None: never.
        lock_wait_seconds: How long a commit waits for the session lock.
        lock_stale_seconds: Age by the filesystem's clock at which a lock counts as abandoned.
        effect_limit_seconds: No effect of a commit begins later than this after it took the lock.
        observation_limit_seconds: A commit refuses an observation older than this.
    """

    session_id: str
    session_dir: str
    python: str = "python3"
    setup: str = ""
    cluster: str | None = None
    container_command: tuple[str, ...] = ()
    network_interface: str | None = None
    rejoin_timeout_seconds: int = 600
    orphan_timeout_seconds: int | None = 3600
    lock_wait_seconds: int = 20
    lock_stale_seconds: int = 75
    effect_limit_seconds: int = 40
    observation_limit_seconds: int = 60

    @property
    def job_name(self) -> str:
        """Job name of every allocation."""
        return job_name_for(self.session_id)

    def submission_dir(self, token: str) -> str:
        """Directory of one submission."""
        return f"{self.session_dir}/submissions/{token}"
