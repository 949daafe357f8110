"""The one error tree.

Every error says what happened, where, and what to do next. Outcomes that callers branch on
(held back, refused by the scheduler, not observed) are values in results, not exceptions.
"""

from __future__ import annotations


class DagsterSlurmError(Exception):
    """Root of every error that this library raises.

    Attributes:
        field: Name of the setting that has to change, as the user writes it
            (``"SlurmComputeResource.remote_base"``); None when no single setting is at fault.
        cluster_said: What the cluster printed, unchanged; None when it said nothing.
        remedy: What to do next, one sentence; None when the message already says it.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        cluster_said: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.message = message
        self.field = field
        self.cluster_said = cluster_said.strip() or None if cluster_said is not None else None
        self.remedy = remedy
        super().__init__(message)

    def __str__(self) -> str:
        parts = [self.message]
        if self.field is not None:
            parts.append(f"Setting: {self.field}.")
        if self.cluster_said is not None:
            parts.append(f"The cluster said: {self.cluster_said}")
        if self.remedy is not None:
            parts.append(f"What to do: {self.remedy}")
        return "\n".join(parts)


class ConfigurationError(DagsterSlurmError, ValueError):
    """A value that the user gave cannot be used; ``field`` names it. Nothing was sent."""


class RemoteError(DagsterSlurmError):
    """The login node could not be asked, or did not answer completely."""


class HostUnreachable(RemoteError):
    """No connection to the host and port."""


class HostKeyRejected(RemoteError):
    """The host's key is unknown or differs from the known one. Nothing was sent."""


class AuthenticationFailed(RemoteError):
    """The host refused the user or the key."""


class RemoteTimeout(RemoteError):
    """A remote script did not finish within its hard time limit; what it did is unknown."""


class ReplyIncomplete(RemoteError):
    """The reply was cut, damaged or lacks a frame; what the script did is unknown."""


class SlurmCommandsMissing(RemoteError):
    """A Slurm command is not on the PATH of the remote shell."""


class SessionError(DagsterSlurmError):
    """Something about a session's directory or records."""


class SessionDirectoryUnsafe(SessionError):
    """The session tree is missing, not writable, a link, of another owner, or writable by others."""


class SessionNotFound(SessionError):
    """No session of this run exists in the base directory."""


class SessionRecordsLost(SessionError):
    """Jobs of this session's name are alive but its records are gone; nothing was submitted."""


class SessionClosing(SessionError):
    """The session is ending; it starts no new work."""


class LedgerDamaged(SessionError):
    """``allocation.json`` cannot be read as a ledger; nothing was changed."""


class LedgerTooNew(SessionError):
    """``allocation.json`` was written by a newer version of this library; nothing was changed."""


class LockTimeout(SessionError):
    """The session lock stayed taken; the message names path, owner, host, age and remedy."""


class SubmissionRefused(DagsterSlurmError):
    """The scheduler refused a job that the caller cannot go on without; ``cluster_said`` has its text."""


class EstimateBudgetExceeded(DagsterSlurmError):
    """More distinct candidates than the estimator asks the scheduler about in one call. Nothing was sent."""


class PayloadFailed(DagsterSlurmError):
    """A payload ended with a failure, or its allocation ended under it; the message has its last log lines."""


class PayloadEndedWithHead(PayloadFailed):
    """A payload ended only because its head did, as often as it may be run again; on another head it can succeed."""
