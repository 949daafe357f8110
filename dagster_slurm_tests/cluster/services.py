"""Start one daemon of a box and know when it answers; the administrator's commands that this needs."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import daemons
from .definition import BoxDefinition
from .errors import BoxError
from .rendering import daemon_commands
from .state import environment, record_process, recorded_processes

_READY_SECONDS = 60.0


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    user: pwd.struct_passwd | None = None,
    check: bool = True,
    timeout_seconds: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as another user if asked, and return it with its output.

    Raises:
        BoxError: `check` is set and the command ended with an error, or it did not end in time.
    """
    change = user if user is not None and user.pw_uid != os.geteuid() else None
    try:
        done = subprocess.run(
            list(argv),
            env=dict(environment),
            cwd=user.pw_dir if user is not None else "/",
            user=change.pw_uid if change else None,
            group=change.pw_gid if change else None,
            extra_groups=[] if change else None,
            stdin=subprocess.DEVNULL,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise BoxError(f"`{shlex.join(argv)}` did not end within {timeout_seconds:g} s") from error
    if check and done.returncode != 0:
        raise BoxError(f"`{shlex.join(argv)}` ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def log_file(definition: BoxDefinition, name: str) -> Path:
    """Return where a daemon's output goes."""
    return Path(definition.directory) / "log" / f"{name}.log"


def start_daemon(definition: BoxDefinition, programs: Mapping[str, str], name: str) -> None:
    """Start a daemon and wait until it answers.

    Raises:
        BoxError: It ended, or does not answer in time; carries the end of its log.
    """
    box = Path(definition.directory)
    process = daemons.launch(
        daemon_commands(definition, programs)[name],
        directory=box,
        pid_file=box / "run" / f"{name}.pid",
        log=log_file(definition, name),
        environment=environment(definition),
        setsid=programs["setsid"],
    )
    record_process(definition, name, process)
    deadline = time.monotonic() + _READY_SECONDS
    while not _answers(definition, name):
        if not daemons.is_alive(process) or time.monotonic() > deadline:
            what = "does not answer" if daemons.is_alive(process) else "ended"
            raise BoxError(f"{name} {what} after its start.\n{daemons.tail(log_file(definition, name))}")
        time.sleep(0.05)


def _answers(definition: BoxDefinition, name: str) -> bool:
    ports = {
        "sshd": definition.ports.sshd,
        "mariadbd": definition.ports.mariadbd,
        "slurmdbd": definition.ports.slurmdbd,
        **{f"slurmd.{node}": definition.ports.slurmd + i for i, node in enumerate(definition.node_names())},
    }
    if name in ports:
        return _listens(ports[name])
    question = {
        "munged": ["munge", "--no-input", f"--socket={definition.munge_socket}"],
        "slurmctld": ["scontrol", "ping"],
    }[name]
    if name == "munged" and not Path(definition.munge_socket).exists():
        return False
    return run(question, environment(definition), check=False, timeout_seconds=30).returncode == 0


def _listens(port: int) -> bool:
    """Return whether somebody listens on a TCP port, without connecting: Slurm logs an idle connection as an error."""
    entries = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(state == "0A" and int(local.rpartition(":")[2], 16) == port for _, local, _, state, *_ in entries)


def node_states(definition: BoxDefinition) -> dict[str, str]:
    """Return Slurm's compact state word of every node by name (a star means: does not respond).

    Raises:
        BoxError: slurmctld does not answer.
    """
    listing = run(["sinfo", "--noheader", "--Node", "--format=%N %t"], environment(definition)).stdout
    return dict(line.split() for line in listing.splitlines())


def cancel_jobs(definition: BoxDefinition, *, seconds: float) -> None:
    """Cancel all jobs of the job user and wait until none is left in the queue.

    Raises:
        BoxError: Jobs are still there after `seconds`, or slurmctld does not answer.
    """
    admin = environment(definition)
    run(["scancel", f"--user={definition.job_user}"], admin, timeout_seconds=seconds)
    listing = ["squeue", "--noheader", f"--user={definition.job_user}", "--format=%A"]
    daemons.wait_until(
        lambda: not run(listing, admin, timeout_seconds=seconds).stdout.strip(), seconds, "end of the jobs"
    )


def ssh_command(definition: BoxDefinition, *remote: str) -> list[str]:
    """Return an OpenSSH command line that runs a remote command as the job user; arguments are quoted."""
    box = definition.directory
    options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={box}/etc/known_hosts"]
    command = ["ssh", "-F", "none", "-i", f"{box}/etc/client_key", "-p", str(definition.ports.sshd)]
    command += [part for option in [*options, "IdentitiesOnly=yes"] for part in ("-o", option)]
    return [*command, f"{definition.job_user}@127.0.0.1", shlex.join(remote)]


def running(definition: BoxDefinition, name: str) -> daemons.Process:
    """Return the process of a daemon.

    Raises:
        BoxError: There is no such daemon, or it does not run.
    """
    known = recorded_processes(definition)
    if name not in known:
        raise BoxError(f"no daemon is called {name}; there are {', '.join(known)}")
    process = known[name]
    if process is None:
        raise BoxError(f"{name} does not run")
    return process
