"""The resource: where the cluster is, how allocations look, and the sessions of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_slurm.allocations.result import EndResult
from dagster_slurm.allocations.settings import session_id_for
from dagster_slurm.policy import Policy
from dagster_slurm.process_sessions import Place, ProcessSessions
from dagster_slurm.remote.housekeeping import FoundSession
from dagster_slurm.resource_options import (
    SlurmHeadOptions,
    SlurmLimits,
    SlurmQueueOptions,
    SlurmWorkerOptions,
)
from dagster_slurm.run_facts import session_tag
from dagster_slurm.run_result import SlurmRunResult
from dagster_slurm.session.session import AllocationSession
from dagster_slurm.step import StepContext, op_context
from dagster_slurm.step_run import Drive, run_payload


class SlurmComputeResource(dg.ConfigurableResource[Any]):
    """A Slurm cluster on which a run's steps share one elastic Ray cluster.

    Nothing is connected or submitted before a step asks for its session. Values are checked then, and a wrong one is a
    ``ConfigurationError`` that names the field before anything is sent.
    """

    host: str = Field(
        default="",
        description="Login node: name, address, or alias of the SSH configuration. Required unless local.",
    )
    port: int | None = Field(
        default=None, description="SSH port of the login node; left out: what the SSH configuration says, else 22."
    )
    user: str = Field(default="", description="User name on the login node; left out: what the SSH configuration says.")
    key_file: str | None = Field(
        default=None, description="Private SSH key; left out: the keys of the SSH agent and the usual files in ~/.ssh."
    )
    password: str | None = Field(
        default=None, description="Tried after the keys. Give it as an EnvVar: configuration is shown in the UI."
    )
    passphrase: str | None = Field(
        default=None, description="Opens key_file. Give it as an EnvVar: configuration is shown in the UI."
    )
    known_hosts: str | None = Field(
        default=None, description="File with the login node's key, which is always checked; left out: the usual files."
    )
    ssh_config: str | None = Field(
        default=None,
        description="SSH configuration that fills in what is left out; left out: ~/.ssh/config where there is one. "
        "/dev/null for none.",
    )
    proxy_jump: str | None = Field(
        default=None,
        description="Jump hosts, [user@]host[:port] with commas between; left out: what the SSH configuration says.",
    )
    local: bool = Field(
        default=False, description="Dagster itself runs on the login node: no SSH, host and user are not used."
    )
    remote_base: str = Field(
        default="~/dagster_slurm",
        description="Directory for all sessions on the shared filesystem of login and compute nodes. It has to exist, "
        "belong to the user and be writable by nobody else. Absolute, or below ~/.",
    )
    remote_setup: str = Field(
        default="", description="Shell lines before every remote script, such as 'module load slurm'."
    )
    slurm_bin: str | None = Field(
        default=None, description="Directory of Slurm's commands when they are not on the PATH of a plain shell."
    )
    ray_python: str = Field(
        default="python3", description="Python of the allocations; it needs ray, and dagster-pipes for Pipes payloads."
    )
    allocation_setup: str = Field(
        default="", description="Shell lines in each batch script before Ray starts, such as 'module load cuda'."
    )
    container_command: list[str] = Field(
        default=[],
        description="Words before Python in each allocation, such as ['apptainer', 'exec', '--nv', '/images/ray.sif']: "
        "ray_python is the container's then, and the nodes need a python3 of their own to start it.",
    )
    network_interface: str | None = Field(
        default=None, description="Network interface whose address Ray uses on each node, such as ib0."
    )
    cluster: str | None = Field(
        default=None, description="Slurm cluster to name in every command, where a site has several."
    )
    session_name: str | None = Field(
        default=None, description="Tells apart the sessions of two resources that one run uses."
    )
    queue: SlurmQueueOptions = Field(
        default=SlurmQueueOptions(), description="Partition, account and the like, for all allocations."
    )
    head: SlurmHeadOptions = Field(default=SlurmHeadOptions(), description="The head's shape; inherits from queue.")
    worker: SlurmWorkerOptions = Field(
        default=SlurmWorkerOptions(), description="The shape that worker allocations inherit from; inherits from queue."
    )
    limits: SlurmLimits = Field(default=SlurmLimits(), description="Bounds that hold whatever a policy asks for.")
    rejoin_timeout_seconds: int = Field(
        default=600, description="A worker allocation that has no head for this long ends itself."
    )
    orphan_timeout_seconds: int | None = Field(
        default=3600,
        description="Allocations end themselves when nobody has used the session for this long; 0 means never.",
    )

    _sessions: ProcessSessions | None = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    # -- sessions ----------------------------------------------------------------------------------

    def get_run_allocation_session(self, context: StepContext) -> AllocationSession:
        """The session of the context's run: created with its head on the first call, attached to after that.

        All steps of the run share it, in whatever processes they run. It does not wait for any allocation. It ends by
        itself when no step of the run is left.

        Raises:
            ConfigurationError, SessionDirectoryUnsafe, SlurmCommandsMissing: a setting; nothing was submitted.
            SubmissionRefused: the scheduler refused the head; nothing runs.
            SessionClosing: the run's session is ending.
            SessionRecordsLost: its jobs live but its records are gone.
            RemoteError: the login node could not be asked, or the scheduler did not answer.
        """
        return self._sessions_of(op_context(context)).get(op_context(context).run.run_id)

    def attach_session(self, run: dg.DagsterRun | str, *, check: bool = True) -> AllocationSession:
        """The session of a run, if there is one; submits nothing. For checks, sensors and scripts.

        Close it with ``session.close()`` where no Dagster run does that.

        Args:
            run: The run or its id.
            check: Whether to look that there is one. Without that the first call on the session finds out.

        Raises:
            ConfigurationError: a setting.
            SessionNotFound: the run has no session.
            RemoteError: the login node could not be asked.
        """
        return self._process_sessions().attach(run if isinstance(run, str) else run.run_id, check=check)

    def attach_run_allocation_session(self, context: StepContext) -> AllocationSession:
        """The session of the context's own run, if there is one; submits nothing.

        As after ``get_run_allocation_session`` it ends by itself when no step of the run is left.

        Raises:
            ConfigurationError: a setting.
            SessionNotFound: the run has no session.
            RemoteError: the login node could not be asked.
        """
        return self._process_sessions().attach(op_context(context).run.run_id, share=True)

    def find_sessions(self) -> tuple[FoundSession, ...]:
        """Every session that has a directory below ``remote_base``; one remote command, and the scheduler is not asked.

        Raises:
            RemoteError: the login node could not be asked.
        """
        return self._process_sessions().find()

    def end_session(self, session_id: str, *, timeout_seconds: float = 30) -> EndResult:
        """End a session by its name, whatever its run does, and remove its secret once nothing of it is left.

        Returns:
            Whether nothing is left. When not, call it again.

        Raises:
            RemoteError: the login node could not be asked.
            SessionError: its directory or records cannot be used.
        """
        return self._process_sessions().end(session_id, timeout_seconds)

    def remove_session(self, session_id: str) -> None:
        """Remove the directory of a session that ``end_session`` has ended completely; any other one stays.

        Raises:
            RemoteError, SessionDirectoryUnsafe: it may be there in part; call it again.
        """
        self._process_sessions().remove(session_id)

    # -- payloads ----------------------------------------------------------------------------------

    def run(
        self,
        *,
        context: StepContext,
        payload: str | Path,
        policy: Policy | None = None,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        interval_seconds: float = 30,
        policy_timeout_seconds: float = 60,
        restarts_with_head: int = 3,
        successor_before_seconds: float | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> SlurmRunResult:
        """Run a payload on the session's head, and keep the workers that its policy asks for while it runs.

        An asset returns ``result.materialize_result()``: Dagster insists on it, as the payload may report results
        through Pipes.

        Args:
            context: The step's context.
            payload: Local Python file or directory; at most 32 MiB are brought to the cluster.
            policy: Decides on the workers; None takes the one on the asset (``worker_policy``), if any.
            argv: Command, run beside the directory ``files`` with what was brought; ``{python}`` is the cluster's
                Python. Empty runs the payload file itself.
            env: Environment variables for it.
            interval_seconds: From one look at the session, and call of the policy, to the next; at least 5.
            policy_timeout_seconds: A policy that takes longer is not waited for; its late answer is ignored.
            restarts_with_head: How often the payload may be run again, from its start, when it ended only because its
                head did (walltime, node failure, preemption). The session elects or submits another head meanwhile. A
                payload that keeps checkpoints loses little. 0: the step fails then.
            successor_before_seconds: When the head's walltime has no more left than this, the next head is queued; it
                takes over in the head's last minute. None: the next head is sought when the head ends.
            extras: For the payload's ``PipesContext``.

        Raises:
            ConfigurationError: an argument or setting; nothing was sent.
            PayloadEndedWithHead: its head ended, more often than ``restarts_with_head``.
            PayloadFailed: it failed; the message has its last lines.
            DagsterSlurmError: as ``get_run_allocation_session``, or the cluster could not be reached for ten minutes.
        """
        drive = Drive(
            payload=Path(payload),
            policy=policy,
            argv=tuple(argv),
            env=dict(env or {}),
            interval_seconds=interval_seconds,
            policy_timeout_seconds=policy_timeout_seconds,
            restarts_with_head=restarts_with_head,
            successor_before_seconds=successor_before_seconds,
            extras=dict(extras or {}),
        )
        drive.check()
        return run_payload(context, self._sessions_of(op_context(context)), drive)

    # -- life --------------------------------------------------------------------------------------

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Called by Dagster in each process: ends the session when no step of the run is left to run or running."""
        with self._lock:
            sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.leave(context.instance, context.log)

    def _sessions_of(self, context: dg.OpExecutionContext) -> ProcessSessions:
        """The sessions, once the run is tagged: a tag is how sensors find it."""
        sessions, run = self._process_sessions(), context.run
        if sessions.is_new(run.run_id):
            session_id = session_id_for(run.run_id, self.session_name)
            context.instance.add_run_tags(run.run_id, {session_tag(self.session_name): session_id})
        return sessions

    def _process_sessions(self) -> ProcessSessions:
        with self._lock:
            if self._sessions is None:
                self._sessions = ProcessSessions(self._place())
            return self._sessions

    def _place(self) -> Place:
        return Place(
            host=self.host,
            port=self.port,
            user=self.user,
            key_file=self.key_file,
            password=self.password,
            passphrase=self.passphrase,
            known_hosts=self.known_hosts,
            ssh_config=self.ssh_config,
            proxy_jump=self.proxy_jump,
            local=self.local,
            remote_base=self.remote_base,
            remote_setup=self.remote_setup,
            slurm_bin=self.slurm_bin,
            ray_python=self.ray_python,
            allocation_setup=self.allocation_setup,
            container_command=tuple(self.container_command),
            network_interface=self.network_interface,
            cluster=self.cluster,
            session_name=self.session_name,
            queue=self.queue,
            head=self.head,
            worker=self.worker,
            limits=self.limits,
            rejoin_timeout_seconds=self.rejoin_timeout_seconds,
            orphan_timeout_seconds=self.orphan_timeout_seconds or None,
        )
