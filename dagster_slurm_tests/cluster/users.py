"""The unprivileged user that owns the jobs of a box."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
from pathlib import Path

from .errors import BoxError
from .packages import search_path
from .places import ensure_base_directory

JOB_USER = "dslurm"


def ensure_job_user() -> pwd.struct_passwd:
    """Return the job user: when root, a fixed unprivileged one, created if missing; else the current user.

    All boxes of a machine share the user and its home directory.

    Raises:
        BoxError: The user cannot be created.
    """
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    base = ensure_base_directory()
    with open(base / "users.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            entry = pwd.getpwnam(JOB_USER)
        except KeyError:
            entry = _create(base / "home")
        home = Path(entry.pw_dir)
        if not home.exists():
            home.mkdir(parents=True, mode=0o755)
            os.chown(home, entry.pw_uid, entry.pw_gid)
    return entry


def _create(home: Path) -> pwd.struct_passwd:
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    # "*" is no valid password and no lock: sshd without PAM refuses users whose field starts with "!".
    command = ["useradd", "--no-create-home", "--home-dir", str(home), "--shell", shell, "--password", "*", JOB_USER]
    outcome = subprocess.run(
        command, env={"PATH": search_path()}, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if outcome.returncode != 0:
        raise BoxError(f"`{' '.join(command)}` failed: {outcome.stdout.strip()}")
    return pwd.getpwnam(JOB_USER)
