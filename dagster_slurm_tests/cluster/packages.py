"""The programs that a box needs: where they are, and how missing ones are installed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import BoxError

# Program -> Debian and Ubuntu package.
PROGRAMS: Mapping[str, str] = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "squeue": "slurm-wlm",
    "scancel": "slurm-wlm",
    "scontrol": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "sacct": "slurm-wlm",
    "sacctmgr": "slurm-wlm",
    "sdiag": "slurm-wlm",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "munge": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setsid": "util-linux",
}

_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_SAVED = Path("/usr/sbin/policy-rc.d.before-dagster-slurm")
_POLICY_TEXT = "#!/bin/sh\n# dagster_slurm: no service starts while packages are installed\nexit 101\n"


def search_path() -> str:
    """Return the PATH that daemons and administrators use; users' own PATH often lacks the sbin directories."""
    wanted = [*os.environ.get("PATH", "").split(":"), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]
    return ":".join(dict.fromkeys(part for part in wanted if part))


def find_programs() -> dict[str, str]:
    """Return the path of each program of a box that is on this machine."""
    path = search_path()
    return {name: found for name in PROGRAMS if (found := shutil.which(name, path=path)) is not None}


def ensure_programs() -> dict[str, str]:
    """Return the path of every program; as root on Debian or Ubuntu, install the missing ones first.

    Raises:
        BoxError: A program is missing and cannot be installed; names the packages to install.
    """
    found = find_programs()
    missing = [name for name in PROGRAMS if name not in found]
    if not missing:
        return found
    packages = sorted({PROGRAMS[name] for name in missing})
    command = "apt-get install " + " ".join(packages)
    reason = f"programs are missing: {', '.join(missing)}. "
    if shutil.which("apt-get") is None:
        raise BoxError(reason + f"Install what Debian calls {', '.join(packages)}, then try again.")
    if os.geteuid() != 0:
        raise BoxError(reason + f"Run as root: {command}")
    install(packages)
    found = find_programs()
    still_missing = [name for name in PROGRAMS if name not in found]
    if still_missing:
        raise BoxError(f"after `{command}` these programs are still missing: {', '.join(still_missing)}")
    return found


def install(packages: list[str]) -> None:
    """Install Debian packages without starting any of their services.

    Raises:
        BoxError: apt-get failed; carries the end of its output.
    """
    with open("/run/lock/dagster-slurm-packages", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _no_service_starts():
            outcome = _apt_get("install", "--no-install-recommends", *packages)
            if outcome.returncode != 0:
                # The package lists of a fresh machine are empty or out of date.
                _apt_get("update")
                outcome = _apt_get("install", "--no-install-recommends", *packages)
    if outcome.returncode != 0:
        raise BoxError(f"apt-get install {' '.join(packages)} failed:\n{outcome.stdout[-2000:]}")


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": search_path(), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300", *arguments]
    return subprocess.run(
        command,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Make Debian's packages leave their services off for the duration (see invoke-rc.d(8), policy-rc.d)."""
    # One that was left behind by a killed installation counts as ours.
    if _POLICY.exists() and _POLICY.read_text() != _POLICY_TEXT:
        if subprocess.run([_POLICY, "munge", "start"], check=False, capture_output=True).returncode == 101:
            yield
            return
        _POLICY.rename(_POLICY_SAVED)
    _POLICY.write_text(_POLICY_TEXT)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
        if _POLICY_SAVED.exists():
            _POLICY_SAVED.rename(_POLICY)
