"""One box as an object: start it, look at it, disturb it, end it."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import final

from . import bringup, packages, services, state
from .daemons import Process, is_alive, is_stopped, marked_processes, send, wait_until
from .definition import DEFAULT_GROUPS, MARKER, BoxDefinition, NodeGroup
from .errors import BoxError
from .ray_python import ensure_ray_python
from .rendering import remote_setup
from .teardown import tear_down

_RPC_LINE = re.compile(
    r"^\s*(?P<name>\S+)\s*\(\s*\d+\s*\)\s*count:(?P<count>\d+)\s+ave_time:\d+\s+total_time:(?P<time>\d+)"
)


@dataclasses.dataclass(frozen=True)
class RpcCount:
    """What sdiag says about one user or one message type since the last reset.

    Attributes:
        count: Number of RPCs.
        total_time_microseconds: Time that slurmctld spent on them.
    """

    count: int
    total_time_microseconds: int


def parse_rpc_counts(sdiag: str, kind: str) -> dict[str, RpcCount]:
    """Read the table "Remote Procedure Call statistics by `kind`" ("message type" or "user") of sdiag's output."""
    _, _, table = sdiag.partition(f"statistics by {kind}")
    found: dict[str, RpcCount] = {}
    for line in table.splitlines()[1:]:
        match = _RPC_LINE.match(line)
        if match is None:
            break
        found[match["name"]] = RpcCount(int(match["count"]), int(match["time"]))
    return found


@final
class SlurmBox:
    """A running box. As a context manager it ends the box; it also ends when the process that started it dies.

    Attributes:
        definition: What the box is made of.
        directory: The box's directory.
        host, port, user, key_file, known_hosts: How to reach the login node over SSH.
        remote_base: An empty directory of the job user, mode 0700.
        slurm_conf: Path of slurm.conf.
        slurm_bin: Directory of Slurm's commands, None when every shell finds them by itself.
        remote_setup: Shell lines that make Slurm's commands work in a shell that reads no profile.
    """

    def __init__(self, definition: BoxDefinition, guard: subprocess.Popen[bytes] | None = None) -> None:
        self.definition = definition
        self.directory = Path(definition.directory)
        self.host = "127.0.0.1"
        self.port = definition.ports.sshd
        self.user = definition.job_user
        self.key_file = f"{self.directory}/etc/client_key"
        self.known_hosts = f"{self.directory}/etc/known_hosts"
        self.remote_base = f"{self.directory}/base"
        self.slurm_conf = definition.slurm_conf
        self.remote_setup = remote_setup(definition)
        self._programs = packages.find_programs()
        binaries = str(Path(self._programs["sbatch"]).parent)
        self.slurm_bin: str | None = None if binaries in ("/usr/bin", "/bin", "/usr/local/bin") else binaries
        self._guard = guard
        self._ray_python: str | None = None

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        ray: bool = False,
        groups: Sequence[NodeGroup] = DEFAULT_GROUPS,
        min_job_age_seconds: int = 30,
        extra_slurm_conf: Sequence[str] = (),
    ) -> SlurmBox:
        """Start a box and return it when it is ready.

        Args:
            directory: Where everything goes; has to be new or empty and reachable by the job user. None picks a name.
            ray: Make `ray_python` now rather than when it is first read.
            groups: Nodes and partitions; by default ten nodes in gpu-a, gpu-b and cpu.
            min_job_age_seconds: How long slurmctld keeps showing ended jobs.
            extra_slurm_conf: Further lines of slurm.conf.

        Raises:
            BoxError: Programs are missing, or the box did not become ready; nothing is left running.
        """
        options = bringup.Options(
            directory=None if directory is None else Path(directory),
            groups=tuple(groups),
            min_job_age_seconds=min_job_age_seconds,
            extra_slurm_conf=tuple(extra_slurm_conf),
        )
        definition, guard = bringup.bring_up(options)
        box = cls(definition, guard)
        if ray:
            try:
                box._ray_python = ensure_ray_python()
            except BaseException:
                box.down()
                raise
        return box

    @classmethod
    def attach(cls, directory: str | os.PathLike[str]) -> SlurmBox:
        """Return the box that another process started in this directory.

        Raises:
            BoxError: There is no box.
        """
        return cls(state.load_definition(Path(directory)))

    def __enter__(self) -> SlurmBox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self, *, keep: bool = False) -> None:
        """End all jobs and daemons, verify that no process is left and remove the directory (not with `keep`).

        Raises:
            BoxError: A process could not be ended.
        """
        tear_down(self.definition, keep=keep)
        self.leave_running()

    def leave_running(self) -> None:
        """Let the box outlive this process; from now on only `down` ends it."""
        if self._guard is not None:
            bringup.dismiss_guard(self._guard)
            self._guard = None

    # Settings

    @property
    def ray_python(self) -> str:
        """Path of a Python with Ray for the jobs; made when first read (about a minute), then kept for all boxes."""
        if self._ray_python is None:
            self._ray_python = ensure_ray_python()
        return self._ray_python

    def settings(self, *, ray: bool = True) -> dict[str, str | int | None]:
        """Return what a SlurmComputeResource needs to know about the box."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "key_file": self.key_file,
            "known_hosts": self.known_hosts,
            "remote_base": self.remote_base,
            "slurm_bin": self.slurm_bin,
            "ray_python": self.ray_python if ray else None,
            "remote_setup": self.remote_setup,
            "directory": str(self.directory),
        }

    def fresh_base(self, name: str) -> Path:
        """Create and return an empty directory of the job user, mode 0700, to be used as a `remote_base`."""
        path = self.directory / "bases" / name
        path.mkdir(mode=0o700)
        bringup.give_to_job_user(path, self.definition)
        return path

    # Commands

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout_seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as Slurm's administrator and return it with its output.

        Raises:
            BoxError: `check` is set and the command ended with an error, or it did not end in time.
        """
        return services.run(argv, state.environment(self.definition), check=check, timeout_seconds=timeout_seconds)

    def as_user(
        self, argv: Sequence[str], *, check: bool = True, timeout_seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the job user, in its home, and return it with its output.

        Raises:
            BoxError: `check` is set and the command ended with an error, or it did not end in time.
        """
        return services.run(
            argv, self.user_environment(), user=self.job_user_entry(), check=check, timeout_seconds=timeout_seconds
        )

    def job_user_entry(self) -> pwd.struct_passwd:
        """Return the job user's entry in the user database."""
        return pwd.getpwnam(self.user)

    def user_environment(self) -> dict[str, str]:
        """Return the environment of a login as the job user with `remote_setup` applied."""
        entry = self.job_user_entry()
        return {
            "HOME": entry.pw_dir,
            "USER": entry.pw_name,
            "LOGNAME": entry.pw_name,
            "SHELL": entry.pw_shell,
            "PATH": ":".join(filter(None, [self.slurm_bin, "/usr/local/bin:/usr/bin:/bin"])),
            "SLURM_CONF": self.slurm_conf,
            MARKER: str(self.directory),
        }

    def ssh_command(self, *remote: str) -> list[str]:
        """Return an OpenSSH command line that runs a remote command as the job user; arguments are quoted."""
        return services.ssh_command(self.definition, *remote)

    # Daemons: munged, sshd, mariadbd, slurmdbd, slurmctld, slurmd.<node>

    def daemons(self) -> dict[str, Process | None]:
        """Return the daemons by name in the order of their start, None for one that does not run."""
        return state.recorded_processes(self.definition)

    def processes(self) -> list[Process]:
        """Return all living processes of the box: daemons, jobs, logins and what they started."""
        return marked_processes(MARKER, str(self.directory))

    def stop_daemon(self, name: str) -> None:
        """Freeze a daemon (SIGSTOP): connections to it hang."""
        process = services.running(self.definition, name)
        send(process, signal.SIGSTOP)
        wait_until(lambda: is_stopped(process), 10, f"{name} stopped")

    def continue_daemon(self, name: str) -> None:
        """Let a frozen daemon go on (SIGCONT)."""
        send(services.running(self.definition, name), signal.SIGCONT)

    def kill_daemon(self, name: str) -> None:
        """Kill a daemon (SIGKILL) and wait until it is gone; connections to it are refused.

        slurmctld writes its state every few seconds: what happened since is lost, as on a real crash.
        """
        process = services.running(self.definition, name)
        send(process, signal.SIGKILL)
        wait_until(lambda: not is_alive(process), 10, f"end of {name}")

    def start_daemon(self, name: str) -> None:
        """Start a daemon that was killed and wait until it answers.

        Raises:
            BoxError: It runs already, or does not answer in time.
        """
        known = self.daemons()
        if known.get(name) is not None:
            raise BoxError(f"{name} runs already")
        services.start_daemon(self.definition, self._programs, name)

    # Jobs and counters

    def cancel_all(self, *, seconds: float = 30) -> None:
        """Cancel all jobs of the job user and wait until none is left in the queue.

        Raises:
            BoxError: Jobs are still there after `seconds`.
        """
        services.cancel_jobs(self.definition, seconds=seconds)

    def rpc_counts(self, user: str | None = None) -> dict[str, RpcCount]:
        """Return sdiag's RPC counts since the last reset.

        Args:
            user: Return only this user's entry, keyed by its name (empty when it made no RPC). None returns the counts
                by message type, of all users and daemons together: sdiag has no table by both.
        """
        text = self.run(["sdiag"]).stdout
        if user is None:
            return parse_rpc_counts(text, "message type")
        return {name: count for name, count in parse_rpc_counts(text, "user").items() if name == user}

    def reset_rpc_counts(self) -> None:
        """Start sdiag's counts anew."""
        self.run(["sdiag", "--reset"])

    def ssh_command_count(self) -> int:
        """Return how many remote commands sshd has started for the job user since the box is up."""
        log = (self.directory / "log" / "sshd.log").read_text(errors="replace")
        return len(re.findall(rf"Starting session: command (?:on \S+ )?for {re.escape(self.user)} ", log))

    def node_states(self) -> dict[str, str]:
        """Return Slurm's state word of every node by name.

        Raises:
            BoxError: slurmctld does not answer.
        """
        return services.node_states(self.definition)
