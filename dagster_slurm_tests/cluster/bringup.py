"""Start a box from nothing to ready."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import string
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import daemons
from .definition import DEFAULT_GROUPS, BoxDefinition, NodeGroup, port_count
from .errors import BoxError
from .packages import ensure_programs
from .places import claim_ports, ensure_base_directory, release_ports
from .rendering import gpu_devices, render_files
from .services import node_states, run, ssh_command, start_daemon
from .state import environment, save_definition
from .teardown import tear_down
from .users import ensure_job_user

_ATTEMPTS = 3


@dataclass(frozen=True)
class Options:
    """What a caller can choose about a box; see `SlurmBox.start`."""

    directory: Path | None = None
    groups: tuple[NodeGroup, ...] = DEFAULT_GROUPS
    min_job_age_seconds: int = 30
    extra_slurm_conf: tuple[str, ...] = ()


def bring_up(options: Options) -> tuple[BoxDefinition, subprocess.Popen[bytes]]:
    """Start a box and return it when it is ready, with the guard that ends it when this process dies.

    Raises:
        BoxError: The box cannot be started; nothing is left running.
    """
    programs = ensure_programs()
    job_user = ensure_job_user()
    attempts_left = _ATTEMPTS
    while True:
        attempts_left -= 1
        definition = _define(options, job_user)
        guard = _start_guard(definition)
        try:
            _prepare(definition, programs, job_user)
            _start_all(definition, programs)
        except BaseException as error:
            again = isinstance(error, BoxError) and attempts_left > 0 and _port_taken(definition)
            tear_down(definition)
            dismiss_guard(guard)
            if not again:
                raise
        else:
            return definition, guard


def _define(options: Options, job_user: pwd.struct_passwd) -> BoxDefinition:
    """Choose names and ports, and make the directory."""
    tag = "".join(secrets.choice(string.ascii_lowercase) for _ in range(5))
    directory = options.directory or ensure_base_directory() / f"box-{tag}"
    directory = directory.absolute()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BoxError(f"{directory} exists and is not an empty directory: choose another one")
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    ports = claim_ports(directory, port_count(options.groups))
    try:
        definition = BoxDefinition(
            directory=str(directory),
            tag=tag,
            ports=ports,
            hostname=socket.gethostname().partition(".")[0],
            admin=pwd.getpwuid(os.geteuid()).pw_name,
            job_user=job_user.pw_name,
            database_password=secrets.token_hex(16),
            groups=options.groups,
            min_job_age_seconds=options.min_job_age_seconds,
            extra_slurm_conf=options.extra_slurm_conf,
        )
        save_definition(definition)
        reach = run(["test", "-r", f"{directory}/."], {}, user=job_user, check=False)
        if reach.returncode != 0:
            raise BoxError(f"the user {job_user.pw_name} cannot reach {directory}: choose a place below /var/tmp")
    except BaseException:
        release_ports(directory, ports)
        (directory / "state.json").unlink(missing_ok=True)
        directory.rmdir()
        raise
    return definition


# The guard: ends the box when the process that started it dies, however it dies.


def _start_guard(definition: BoxDefinition) -> subprocess.Popen[bytes]:
    package_root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "dagster_slurm_tests.cluster", "guard", "--dir", definition.directory],
        cwd=package_root,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def dismiss_guard(guard: subprocess.Popen[bytes]) -> None:
    """Tell the guard that it is not needed any more, and wait for its end."""
    guard.communicate(b"dismissed\n", timeout=60)


# Files


def _prepare(definition: BoxDefinition, programs: Mapping[str, str], job_user: pwd.struct_passwd) -> None:
    """Write every file that the daemons need."""
    box = Path(definition.directory)
    for name in ("etc", "run", "run/munge", "log", "state", "spool", "database", "dev", "bases"):
        (box / name).mkdir()
        (box / name).chmod(0o755)  # whatever the umask
    for relative, file in render_files(definition).items():
        path = box / relative
        path.touch(mode=0o600)
        path.write_text(file.text)
        path.chmod(file.mode)
    for device in gpu_devices(definition):
        Path(device).symlink_to("/dev/null")
    munge_key = box / "etc" / "munge.key"
    munge_key.touch(mode=0o600)
    munge_key.write_bytes(secrets.token_bytes(1024))
    for name in ("ssh_host_ed25519_key", "client_key"):
        keygen = [programs["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(box / "etc" / name)]
        run(keygen, environment(definition))
    host_key = (box / "etc" / "ssh_host_ed25519_key.pub").read_text()
    (box / "etc" / "known_hosts").write_text(f"[127.0.0.1]:{definition.ports.sshd} {host_key}")
    authorized_keys = box / "etc" / "authorized_keys"
    authorized_keys.write_text((box / "etc" / "client_key.pub").read_text())
    authorized_keys.chmod(0o644)
    base = box / "base"
    base.mkdir(mode=0o700)
    give_to_job_user(base, definition)
    if os.geteuid() == 0:
        # sshd's privilege separation directory; fixed when sshd is built, made by its service otherwise.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


def give_to_job_user(path: Path, definition: BoxDefinition) -> None:
    """Make the job user the owner of a file or directory."""
    entry = pwd.getpwnam(definition.job_user)
    os.chown(path, entry.pw_uid, entry.pw_gid)


# Daemons


def _start_all(definition: BoxDefinition, programs: Mapping[str, str]) -> None:
    """Start all daemons, at the same time where they do not need each other, and wait until the box is ready."""

    def start(name: str) -> None:
        start_daemon(definition, programs, name)

    with ThreadPoolExecutor(max_workers=16) as pool:
        munge = pool.submit(start, "munged")
        login = pool.submit(start, "sshd")
        _make_database(definition, programs)
        start("mariadbd")
        munge.result()
        start("slurmdbd")
        _fill_accounting(definition)
        start("slurmctld")
        for ready in [pool.submit(start, f"slurmd.{node}") for node in definition.node_names()]:
            ready.result()
        login.result()
        run(ssh_command(definition, "true"), environment(definition))
    daemons.wait_until(lambda: _all_idle(definition), 60, "all nodes idle")


def _all_idle(definition: BoxDefinition) -> bool:
    states = node_states(definition)
    return set(states) == set(definition.node_names()) and set(states.values()) == {"idle"}


def _make_database(definition: BoxDefinition, programs: Mapping[str, str]) -> None:
    command = [
        programs["mariadb-install-db"],
        "--no-defaults",
        f"--datadir={definition.directory}/database",
        f"--user={definition.admin}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    ]
    run(command, environment(definition), timeout_seconds=120)


def _fill_accounting(definition: BoxDefinition) -> None:
    """Register cluster, accounts, QOS and the job user."""
    cluster = f"cluster={definition.cluster_name}"
    accounts = ",".join(definition.accounts)
    qos = ",".join(definition.qos)
    for words in (
        ["cluster", definition.cluster_name],
        ["account", accounts, cluster],
        ["qos", qos],
        [
            "user",
            definition.job_user,
            f"account={accounts}",
            f"defaultaccount={definition.accounts[0]}",
            f"qos=normal,{qos}",
            cluster,
        ],
    ):
        run(["sacctmgr", "--immediate", "--quiet", "add", *words], environment(definition))


def _port_taken(definition: BoxDefinition) -> bool:
    """Return whether another program took one of the claimed ports before the box's daemon did."""
    logs = Path(definition.directory, "log").glob("*.log")
    return any("address already in use" in log.read_text(errors="replace").lower() for log in logs)
