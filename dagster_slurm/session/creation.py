"""Get a run's session: create it with its head, or attach to the one that is there."""

from __future__ import annotations

from contextlib import suppress

import attrs

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.plan import HeldBackReasons
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.allocations.workers import DEFAULT_LIVE_PER_SESSION, DEFAULT_SUBMISSIONS_PER_CALL
from dagster_slurm.errors import LedgerDamaged, LedgerTooNew, RemoteTimeout, SubmissionRefused
from dagster_slurm.remote.creation import create_directory
from dagster_slurm.remote.shell import RemoteShell
from dagster_slurm.remote.site import RemoteSite
from dagster_slurm.session.commit_loop import carry_out, fresh_tokens
from dagster_slurm.session.session import AllocationSession


@attrs.frozen(kw_only=True)
class SessionSpec:
    """What a session is made from.

    Attributes:
        settings: Its place; ``session_dir`` is filled in when it is created.
        remote_base: Directory of all sessions on the cluster's shared filesystem.
        head: Shape of the head's allocation.
        worker: Shape that worker allocations inherit from.
        submissions_per_call: Most submissions of one call.
        live_per_session: Most live allocations.
    """

    settings: SessionSettings
    remote_base: str
    head: EffectiveShape
    worker: EffectiveShape
    submissions_per_call: int = DEFAULT_SUBMISSIONS_PER_CALL
    live_per_session: int = DEFAULT_LIVE_PER_SESSION


def create_or_attach(shell: RemoteShell, spec: SessionSpec) -> AllocationSession:
    """Get the session with a head: submitted now unless there is one, or one may be on its way. Waits for nothing.

    Several processes may call this at once: one of them submits the head.

    Raises:
        ConfigurationError, SessionDirectoryUnsafe, SlurmCommandsMissing: nothing was submitted; it names the setting.
        SubmissionRefused: the scheduler refused the head; nothing runs.
        SessionClosing: the session is ending.
        SessionRecordsLost: its jobs live but its records are gone.
        RemoteError: the login node could not be asked, or the scheduler did not answer.
    """
    session_id = spec.settings.session_id
    directory = create_directory(
        shell,
        remote_base=spec.remote_base,
        session_id=session_id,
        python=spec.settings.python,
        setup=spec.settings.setup,
        in_container=bool(spec.settings.container_command),
    )
    settings = attrs.evolve(spec.settings, session_dir=directory)
    site = RemoteSite(shell, settings)
    outcome = carry_out(
        site, lambda observation: plan_head(observation, session_id, spec.head, spec.worker, fresh_tokens())
    )
    said = str(HeldBackReasons(outcome.held_back))
    head_known = outcome.ledger.head is not None or outcome.ledger.worker_submissions
    if not head_known and "refused" in HeldBackReasons(outcome.held_back).codes:
        raise SubmissionRefused(
            f"The scheduler refused the head of session {session_id}; nothing runs.",
            field="SlurmComputeResource.head (or queue)",
            cluster_said=said,
            remedy="change the field that the scheduler names, such as partition, account, qos or gpus_per_node.",
        )
    if not head_known:
        raise RemoteTimeout(
            f"The head of session {session_id} was not submitted.", cluster_said=said, remedy="try again later."
        )
    return _session(shell, site, settings, spec)


def attach(shell: RemoteShell, spec: SessionSpec, *, check: bool = True) -> AllocationSession:
    """Attach to a session that exists, and submit nothing.

    Args:
        shell: The login node.
        spec: What the session was made from.
        check: Whether to look that it exists. Without that the first call finds out, which is right for ending one
            whose creation was interrupted.

    Raises:
        SessionNotFound: there is none.
        SessionDirectoryUnsafe: remote_base cannot be used.
        RemoteError: the login node could not be asked.
    """
    base = spec.remote_base.rstrip("/")
    if base == "~" or base.startswith("~/"):
        base = _home(shell) + base[1:]
    settings = attrs.evolve(spec.settings, session_dir=f"{base}/sessions/{spec.settings.session_id}")
    session = _session(shell, RemoteSite(shell, settings), settings, spec)
    if check:
        # Records that cannot be read exist: the session can still be ended, and every other hook says what is wrong.
        with suppress(LedgerDamaged, LedgerTooNew):
            session.inspect()
    return session


def _home(shell: RemoteShell) -> str:
    reply = shell.run('emit home 0 "$HOME"')
    section = reply.section("home")
    if section is None:
        raise RemoteTimeout(f"{shell.address} did not tell its home directory.", cluster_said=reply.noise or None)
    return section.text


def _session(shell: RemoteShell, site: RemoteSite, settings: SessionSettings, spec: SessionSpec) -> AllocationSession:
    return AllocationSession(
        shell,
        site,
        settings,
        submissions_per_call=spec.submissions_per_call,
        live_per_session=spec.live_per_session,
    )
