"""Make a session's directory on the cluster, or say clearly why that cannot be done."""

from __future__ import annotations

import io
import secrets
import tarfile
from functools import lru_cache
from pathlib import Path

from dagster_slurm.errors import ConfigurationError, SessionDirectoryUnsafe, SlurmCommandsMissing
from dagster_slurm.remote.frames import Reply, quote
from dagster_slurm.remote.replies import missing
from dagster_slurm.remote.scripts import part
from dagster_slurm.remote.shell import RemoteShell
from dagster_slurm.remote.transfer import unpack_commands

_BASE_FIELD = "SlurmComputeResource.remote_base"
_PYTHON_FIELD = "SlurmComputeResource.ray_python"

_BASE_FAULTS = {
    "not_absolute": ("is not an absolute path", "give an absolute path on the cluster, or one that begins with ~/"),
    "link": ("is a symbolic link", "give the directory that it points to"),
    "missing": (
        "does not exist or is not a directory",
        "create it on the cluster (mkdir -p -m 700), on a filesystem that login and compute nodes share",
    ),
    "owner": ("belongs to another user", "give a directory that the SSH user owns"),
    "not_writable": ("cannot be written", "check its permissions, the quota and the free space"),
    "writable_by_others": ("can be written by others", "take that away (chmod go-w): they could run commands as you"),
    "unsafe": ("is a link or belongs to another user", "remove it, or give another remote_base"),
}


@lru_cache(maxsize=1)
def library_archive() -> bytes:
    """The programs that run on the cluster, as tar.gz: the agent, and the part of this package that payloads import."""
    package = Path(__file__).parent.parent
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in sorted((package / "agent").glob("*.py")):
            archive.add(file, f"dagster_slurm_agent/{file.name}", filter=_anonymous)
        for name in ("__init__.py", "ray.py"):
            archive.add(package / name, f"dagster_slurm/{name}", filter=_anonymous)
    return buffer.getvalue()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def create_directory(
    shell: RemoteShell, *, remote_base: str, session_id: str, python: str, setup: str, in_container: bool = False
) -> str:
    """Make the session's directory, or find the one that is there.

    Args:
        shell: The login node.
        remote_base: Where sessions live; ``~/`` means the user's home there.
        session_id: Name of the session.
        python: Python of the allocations; it has to have Ray.
        setup: Shell lines that run before it in each batch script.
        in_container: Whether it is a container's Python, which a login node cannot be asked about.

    Returns:
        Absolute path of the session's directory on the cluster.

    Raises:
        SessionDirectoryUnsafe: remote_base cannot be used; the message says why.
        SlurmCommandsMissing: a Slurm command is not on the PATH.
        ConfigurationError: the Python does not exist or lacks Ray.
    """
    parameters = {
        "base": remote_base,
        "session_id": session_id,
        "nonce": secrets.token_hex(16),
        "secret": secrets.token_hex(32),
    }
    # Whether Ray is there, without the third of a second that importing it takes.
    probe = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('ray') else 'no module named ray')"
    check = ":" if in_container else f"eval {quote(setup or ':')} >&2; {quote(python)} -c {quote(probe)}"
    body = "".join(
        [
            *(f"{name}={quote(value)}\n" for name, value in parameters.items()),
            f"check_python() {{ {check}; }}\n",
            f'unpack_library() {{\ncd "$library" &&\n{unpack_commands(library_archive(), ".")}}}\n',
            part("create.sh"),
            "create\n",
        ]
    )
    return _read(shell.run(body), shell.address, python)


def _read(reply: Reply, address: str, python: str) -> str:
    base, commands, probe = (reply.section(name) for name in ("base", "commands", "python"))
    if base is not None and base.status == 0:
        return base.text
    if base is not None:
        code, _, rest = base.text.partition(" ")
        fault, remedy = _BASE_FAULTS.get(code, ("cannot be used", "look at it on the cluster"))
        raise SessionDirectoryUnsafe(
            f"{rest.split(' ')[0]} on {address} {fault}.", field=_BASE_FIELD, cluster_said=rest or None, remedy=remedy
        )
    if commands is not None and commands.text.strip():
        raise SlurmCommandsMissing(
            f"On {address} these Slurm commands are not on the PATH: {commands.text.strip()}.",
            field="SlurmComputeResource.slurm_bin or SlurmComputeResource.remote_setup",
            cluster_said=reply.noise or None,
            remedy="name their directory in slurm_bin, or load them in remote_setup (for example: module load slurm); "
            "the remote shell reads no login profile.",
        )
    if probe is not None and probe.status != 0:
        raise ConfigurationError(
            f"{python} on {address} cannot be used for the allocations: it is missing or has no Ray.",
            field=_PYTHON_FIELD,
            cluster_said=probe.text or None,
            remedy="give a Python of the cluster in which `pip install ray dagster-pipes` was done.",
        )
    raise missing(reply, "the answer about the session's directory", address)
