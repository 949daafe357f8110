"""How Ray is started on a node: command line, environment, labels and a private directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping

from .gcs import INSTANCE_LABEL, INTENT_LABEL, JOB_LABEL, NODE_LABEL
from .grant import RayShare, without_step_variables

#: Longest path below Ray's temp dir: ``/session_2026-12-01_11-48-08_808162_4194304/sockets/plasma_store``.
RAY_SOCKET_SUFFIX_BYTES = 64

#: Linux: sun_path holds 108 bytes, one for the end.
SOCKET_PATH_BYTES = 107

#: Random characters of ``tempfile.mkdtemp``, and Ray's own directory ``/r9`` for its ninth start.
RANDOM_NAME_BYTES = 8
START_NAME_BYTES = 3

LOCK_NAME = "lock"
LEFT_OVER = re.compile(r"^ds-\d+-\w{8}$")

#: A directory this young may belong to an agent that has not locked it yet.
LEFT_OVER_SECONDS = 600.0

STACK_LINE = re.compile(r"\(\+0x[0-9a-f]+\) \[0x")

LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")


#: Descriptors of the locks that this process holds until it ends.
_locks: list[int | None] = []


def label_value(text: str) -> str:
    """``text`` where Ray allows it as a label's value, else a readable form of it with a short digest."""
    if LABEL_VALUE.match(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("_.-")[:50]
    return f"{readable}-{digest}" if readable else digest


def node_labels(slurm_job_id: str, node: str, intent: str | None, instance: str) -> dict[str, str]:
    """The labels by which everybody finds this Ray node again. Names and addresses that Ray reports are never used."""
    labels = {JOB_LABEL: slurm_job_id, NODE_LABEL: label_value(node), INSTANCE_LABEL: instance}
    if intent:
        labels[INTENT_LABEL] = label_value(intent)
    return labels


def ray_command(
    python: str,
    *,
    head_address: str | None,
    node_ip: str,
    temp_dir: str,
    share: RayShare,
    labels: Mapping[str, str],
    resources: Mapping[str, float],
    client_port: int | None,
    extra: Iterable[str] = (),
) -> list[str]:
    """Command line of ``ray start``.

    Args:
        head_address: Address to join; None starts a head.
        client_port: A free port for the Ray client's server of a head; None where Ray would not start one.
        extra: The user's options, last, so that they win.
    """
    # Ports 0: chosen by the system. Ray's fixed ports collide when a host has several Ray nodes.
    command = [
        python,
        "-u",
        "-c",
        "from ray.scripts.scripts import main; main()",
        "start",
        "--block",
        "--log-color=false",
    ]
    if head_address is None:
        command += ["--head", "--port=0", "--include-dashboard=false", "--no-monitor"]
        if client_port is not None:
            command.append(f"--ray-client-server-port={client_port}")
    else:
        command.append(f"--address={head_address}")
    command += [
        f"--node-ip-address={node_ip}",
        f"--temp-dir={temp_dir}",
        f"--num-cpus={share.cpus}",
        f"--num-gpus={share.gpus}",
        f"--memory={share.memory_bytes}",
        f"--object-store-memory={share.object_store_bytes}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--labels=" + ",".join(f"{name}={value}" for name, value in labels.items()),
    ]
    if resources:
        command.append("--resources=" + json.dumps(dict(resources)))
    return [*command, *extra]


def ray_environment(environ: Mapping[str, str], token_file: str) -> dict[str, str]:
    """Environment of every Ray process: token authentication, no step variables, an end without a long wait."""
    return {
        **without_step_variables(environ),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        # On SIGTERM `ray start --block` would wait up to 30 s for the node to drain. The agent has drained it before.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }


def starts_client_server() -> bool:
    """Whether this Ray starts a server for the Ray client on a head (it does so where grpc is installed)."""
    return importlib.util.find_spec("grpc") is not None


def installed_ray_version() -> str | None:
    """Version of the ray that this Python imports; None without one."""
    if importlib.util.find_spec("ray") is None:
        return None
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return None


def private_parent(candidates: Iterable[str | None], prefix: str) -> str | None:
    """First directory that is short enough for Ray's sockets and takes new directories; None when there is none."""
    for candidate in candidates:
        if not candidate or not os.path.isabs(candidate):
            continue
        private = os.path.join(candidate, prefix)
        below = RANDOM_NAME_BYTES + START_NAME_BYTES + RAY_SOCKET_SUFFIX_BYTES
        if len(os.fsencode(private)) + below > SOCKET_PATH_BYTES:
            continue
        if os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    return None


def make_private_directory(environ: Mapping[str, str], slurm_job_id: str) -> str:
    """A new directory on this node that only its owner can enter (Ray makes its own files open to everybody).

    Raises:
        OSError: no directory is short enough and writable.
    """
    prefix = f"ds-{slurm_job_id}-"
    parent = private_parent([environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"], prefix)
    if parent is None:
        raise OSError("neither TMPDIR, /tmp, /var/tmp nor /dev/shm is writable and short enough for Ray's sockets")
    remove_left_over_directories(parent)
    directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
    os.chmod(directory, stat.S_IRWXU)
    # Held open, and so locked, until this process ends.
    _locks.append(lock(os.path.join(directory, LOCK_NAME)))
    return directory


def lock(path: str) -> int | None:
    """Lock a file for as long as this process lives; None when another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def remove_left_over_directories(parent: str) -> None:
    """Remove what our own agents left here because they were killed: nobody holds the lock of such a directory."""
    if not os.access(parent, os.R_OK):
        return
    for entry in os.scandir(parent):
        if not LEFT_OVER.match(entry.name):
            continue
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if not ours or time.time() - found.st_mtime < LEFT_OVER_SECONDS:
                continue
            if not os.path.exists(os.path.join(entry.path, LOCK_NAME)):
                continue
            descriptor = lock(os.path.join(entry.path, LOCK_NAME))
            if descriptor is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(descriptor)


def log_tails(temp_dir: str, *, lines: int = 15) -> str:
    """Last lines of Ray's own logs below a temp dir, for the job's log after a failure; empty without any.

    Lines of a C++ stack are left out: they hide the sentence above them.
    """
    folder = os.path.join(temp_dir, "session_latest", "logs")
    parts = []
    for name in ("gcs_server.err", "gcs_server.out", "raylet.err", "raylet.out"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
                read = stream.read()[-16000:].splitlines()
        except OSError:
            continue
        tail = [line for line in read if line.strip() and not STACK_LINE.search(line)][-lines:]
        if tail:
            parts.append("\n".join([f"--- {name}", *tail]))
    return "\n".join(parts)
