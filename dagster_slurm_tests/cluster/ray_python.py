"""A Python with Ray for the jobs of a box: a virtual environment that the job user can reach, shared by all boxes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import BoxError
from .packages import install
from .places import ensure_base_directory

PROJECTS = ("ray", "dagster-pipes", "scikit-learn", "matplotlib", "numpy")
LOCK_FILE = Path(__file__).resolve().parents[2] / "requirements.lock"


def locked_lines(lock_text: str, projects: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a lock file that name these projects; one project can have a line per Python version."""
    wanted = set(projects)
    lines = (line.strip() for line in lock_text.splitlines())
    return tuple(line for line in lines if re.split(r"[=\s;\[]", line, maxsplit=1)[0] in wanted)


def _interpreter() -> str:
    # The running Python may lie below a home that the job user cannot enter.
    found = "/usr/bin/python3"
    if not Path(found).exists():
        raise BoxError(f"{found} is missing: install python3 and python3-venv of the distribution")
    return found


def _run(command: Sequence[str], what: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    outcome = subprocess.run(
        command,
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"},
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0o022,
    )
    if outcome.returncode != 0:
        raise BoxError(f"{what} failed: {' '.join(command)}\n{outcome.stdout[-2000:]}")
    return outcome.stdout


def _has_venv(interpreter: str) -> bool:
    return (
        subprocess.run([interpreter, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0
    )


def ensure_ray_python(lock_file: Path = LOCK_FILE) -> str:
    """Return the path of a Python with the locked versions of Ray and of what the example's jobs need.

    Made once per set of versions (about a minute), below the boxes' base directory. Two callers at once make it once.

    Raises:
        BoxError: The virtual environment cannot be made; carries the end of pip's output.
    """
    interpreter = _interpreter()
    version = _run([interpreter, "-V"], "asking Python for its version")
    requirements = locked_lines(lock_file.read_text(), PROJECTS)
    digest = hashlib.sha256("\n".join([version, *requirements]).encode()).hexdigest()[:12]
    target = ensure_base_directory() / f"ray-python-{digest}"
    complete = target / "complete"
    python = target / "bin" / "python"
    if complete.exists():
        return str(python)
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            return str(python)
        if target.exists():
            shutil.rmtree(target)
        if not _has_venv(interpreter):
            if os.geteuid() != 0:
                raise BoxError("Python's venv is missing. Run as root: apt-get install python3-venv")
            install(["python3-venv"])
        _run([interpreter, "-m", "venv", str(target)], "making the virtual environment")
        pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(lock_file), *PROJECTS]
        _run(pip, "installing Ray")
        complete.touch()
    return str(python)
