"""The sessions that one process uses: one per run, over one connection, and what happens to them at its end."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import dagster as dg

from dagster_slurm.allocations.result import EndResult
from dagster_slurm.allocations.settings import SessionSettings, session_id_for
from dagster_slurm.errors import ConfigurationError, DagsterSlurmError, SessionNotFound
from dagster_slurm.life import run_is_over
from dagster_slurm.remote.housekeeping import FoundSession
from dagster_slurm.remote.shell import LocalShell, RemoteShell
from dagster_slurm.resource_options import (
    SlurmHeadOptions,
    SlurmLimits,
    SlurmQueueOptions,
    SlurmWorkerOptions,
    check_limits,
    shapes_of,
)
from dagster_slurm.session.creation import SessionSpec, attach, create_or_attach
from dagster_slurm.session.housekeeping import find_sessions, remove_session, seal_session
from dagster_slurm.session.session import AllocationSession

if TYPE_CHECKING:
    from dagster_slurm.remote.ssh_login import SshAddress


def _field(name: str) -> str:
    return f"SlurmComputeResource.{name}"


@attrs.frozen(kw_only=True)
class Place:
    """The resource's values; see its fields."""

    host: str
    port: int | None
    user: str
    key_file: str | None
    password: str | None = attrs.field(repr=False)
    passphrase: str | None = attrs.field(repr=False)
    known_hosts: str | None
    ssh_config: str | None
    proxy_jump: str | None
    local: bool
    remote_base: str
    remote_setup: str
    slurm_bin: str | None
    ray_python: str
    allocation_setup: str
    container_command: tuple[str, ...]
    network_interface: str | None
    cluster: str | None
    session_name: str | None
    queue: SlurmQueueOptions
    head: SlurmHeadOptions
    worker: SlurmWorkerOptions
    limits: SlurmLimits
    rejoin_timeout_seconds: int
    orphan_timeout_seconds: int | None

    def check(self) -> None:
        """Look at everything that can be judged without the cluster.

        Raises:
            ConfigurationError: a value cannot be used; ``field`` names it.
        """
        if not self.local:
            self._check_login()
        for name in ("remote_base", "ray_python"):
            value = getattr(self, name)
            if not value.strip():
                raise ConfigurationError(f"{name} is empty.", field=_field(name))
        if not self.remote_base.startswith(("/", "~/")):
            raise ConfigurationError(
                f"remote_base is {self.remote_base!r}, which is not absolute.",
                field=_field("remote_base"),
                remedy="give an absolute path on the cluster, or one that begins with ~/.",
            )
        for name in ("rejoin_timeout_seconds", "orphan_timeout_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and seconds < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {seconds}.", field=_field(name))
        check_limits(self.limits)

    def _check_login(self) -> None:
        if not self.host.strip():
            raise ConfigurationError(
                "host is empty.",
                field=_field("host"),
                remedy="name the login node, or set local=True on the login node.",
            )
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigurationError(f"{self.port} is no TCP port.", field=_field("port"))
        for name in ("key_file", "known_hosts", "ssh_config"):
            path = getattr(self, name)
            if path is not None and not Path(path).expanduser().is_file():
                raise ConfigurationError(
                    f"There is no file {path} on this machine, where Dagster runs.",
                    field=_field(name),
                    remedy="give the path of a file that the process of Dagster can read.",
                )
        self._address()

    def shell(self) -> RemoteShell:
        """A shell on the login node; connects when it is first used."""
        if self.local:
            return LocalShell(self.remote_setup, self.slurm_bin)
        # paramiko takes a tenth of a second to import, and only those who connect need it.
        from dagster_slurm.remote.ssh import SshShell

        return SshShell(self._address(), self.remote_setup, self.slurm_bin)

    def _address(self) -> SshAddress:
        from dagster_slurm.remote.ssh_config import Login, address_of

        return address_of(
            Login(
                host=self.host.strip(),
                port=self.port,
                user=self.user.strip() or None,
                key_file=_expanded(self.key_file),
                known_hosts=_expanded(self.known_hosts),
                proxy_jump=self.proxy_jump,
                config_file=_expanded(self.ssh_config),
                password=self.password or None,
                passphrase=self.passphrase or None,
            )
        )

    def spec(self, run_id: str) -> SessionSpec:
        """What a run's session is made from."""
        return self.spec_of(session_id_for(run_id, self.session_name))

    def spec_of(self, session_id: str) -> SessionSpec:
        """What the session of that name is made from."""
        shapes = shapes_of(self.queue, self.head, self.worker)
        settings = SessionSettings(
            session_id=session_id,
            session_dir="",
            python=self.ray_python,
            setup=self.allocation_setup,
            cluster=self.cluster,
            container_command=self.container_command,
            network_interface=self.network_interface or None,
            rejoin_timeout_seconds=self.rejoin_timeout_seconds,
            orphan_timeout_seconds=self.orphan_timeout_seconds,
        )
        return SessionSpec(
            settings=settings,
            remote_base=self.remote_base,
            head=shapes.head,
            worker=shapes.worker,
            submissions_per_call=self.limits.submissions_per_call,
            live_per_session=self.limits.live_per_session,
        )


def _expanded(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser())


class ProcessSessions:
    """Sessions by run. Safe to use from several threads."""

    def __init__(self, place: Place) -> None:
        place.check()
        self._place = place
        self._shell = place.shell()
        self._lock = threading.Lock()
        self._begun: dict[str, AllocationSession | None] = {}
        self._interrupted = False

    def get(self, run_id: str) -> AllocationSession:
        """The run's session, created or attached to once.

        Raises:
            DagsterSlurmError: see ``create_or_attach``.
        """
        with self._lock:
            known = self._begun.get(run_id)
            if known is not None:
                return known
            spec = self._place.spec(run_id)
            # Noted before anything is sent: an interrupt may come at any point from here on.
            self._begun[run_id] = None
            try:
                session = create_or_attach(self._shell, spec)
            except BaseException as error:
                if self._shell.round_trips == 0:
                    del self._begun[run_id]  # nothing ever ran over there
                self._interrupted = self._interrupted or not isinstance(error, Exception)
                raise
            self._begun[run_id] = session
            return session

    def is_new(self, run_id: str) -> bool:
        """Whether this process has not asked for the run's session yet."""
        with self._lock:
            return run_id not in self._begun

    def attach(self, run_id: str, *, share: bool = False, check: bool = True) -> AllocationSession:
        """The session of a run that has one.

        Args:
            run_id: The run.
            share: The run is this process's own: leaving ends its session when no step is left.
            check: Whether to look that there is one.

        Raises:
            SessionNotFound: it has none.
            RemoteError: the login node could not be asked.
        """
        with self._lock:
            known = self._begun.get(run_id)
        session = attach(self._shell, self._place.spec(run_id), check=check) if known is None else known
        if share:
            with self._lock:
                self._begun[run_id] = session
        return session

    def find(self) -> tuple[FoundSession, ...]:
        """Every session below the resource's base."""
        return find_sessions(self._shell, self._place.remote_base)

    def end(self, session_id: str, timeout_seconds: float) -> EndResult:
        """End a session by its name, and seal it once nothing of it is left."""
        session = attach(self._shell, self._place.spec_of(session_id), check=False)
        result = session.end(timeout_seconds=timeout_seconds)
        if result.complete:
            seal_session(self._shell, session.session_dir)
        return result

    def remove(self, session_id: str) -> None:
        """Remove the directory of a sealed session."""
        remove_session(self._shell, self._place.remote_base, session_id)

    def note_interrupt(self) -> None:
        """The run is being stopped, whatever its event log still says."""
        self._interrupted = True

    def leave(self, instance: dg.DagsterInstance | None, log: logging.Logger | None) -> None:
        """The process is done with them: end those of runs that are over, and close the connection.

        A failure is written to the run's log with the jobs that may survive, and raised no further: the step's own
        outcome stands.
        """
        log = log or logging.getLogger("dagster_slurm")
        try:
            for run_id, session in self._begun.items():
                if self._is_over(instance, run_id, log):
                    self._end(run_id, session, log)
        finally:
            self._shell.close()

    def _is_over(self, instance: dg.DagsterInstance | None, run_id: str, log: logging.Logger) -> bool:
        if self._interrupted or instance is None:
            return True
        try:
            return run_is_over(instance, run_id)
        # Dagster's own state machine, over a log that somebody else may have written: ending too early would kill work.
        except Exception as error:  # noqa: BLE001
            log.warning(
                f"Whether run {run_id} still needs its Slurm session could not be read from its event log, so the "
                f"session stays: {type(error).__name__}: {error}"
            )
            return False

    def _end(self, run_id: str, session: AllocationSession | None, log: logging.Logger) -> None:
        try:
            if session is None:
                session = attach(self._shell, self._place.spec(run_id), check=False)
            result = session.end()
        except SessionNotFound:
            if session is not None and session.known_jobs:
                log.error(_survivors(session, "its directory is gone", session.known_jobs))
        except DagsterSlurmError as error:
            log.error(_survivors(session, str(error), () if session is None else session.known_jobs))
        else:
            if result.complete:
                log.info(f"The Slurm session {session.session_id} has ended; no job of it is left.")
                self._seal(session, log)
            else:
                open_ones = f"; {result.unresolved} submissions are open" if result.unresolved else ""
                log.error(_survivors(session, f"the scheduler still shows its jobs{open_ones}", result.live))

    def _seal(self, session: AllocationSession, log: logging.Logger) -> None:
        try:
            seal_session(self._shell, session.session_dir)
        except DagsterSlurmError as error:
            log.warning(f"The directory of the ended session could not be sealed; a cleanup sensor will: {error}")


def _survivors(session: AllocationSession | None, why: str, jobs: tuple[str, ...]) -> str:
    if session is None:
        return f"The run's Slurm session could not be ended: {why}\nWhat it submitted ends itself when nobody uses it."
    named = f"these jobs may still run: {', '.join(jobs)}" if jobs else "no job id of it is known here"
    return (
        f"The Slurm session {session.session_id} on {session.address} could not be ended: {why}\n"
        f"{named[0].upper()}{named[1:]}. Look with: squeue --name={session.job_name}; end with: "
        f"scancel --name={session.job_name}. Without that they end themselves when nobody uses the session."
    )
