"""What Slurm granted to this node, read from the environment, and what of it Ray gets. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024

#: Ray refuses an object store below 75 MiB.
SMALLEST_OBJECT_STORE_BYTES = 80 * MEBIBYTE

#: Share of the granted memory for the object store; Ray's own default share of a whole machine.
OBJECT_STORE_SHARE = 0.3

#: Kept from Ray's logical memory for Ray's own processes and the agent.
RESERVED_BYTES = 256 * MEBIBYTE

OBJECT_STORE_VARIABLE = "DAGSTER_SLURM_OBJECT_STORE_BYTES"

#: Under this prefix the batch step passes the allocation's memory on: srun would take Slurm's own names as options, and
#: sets them for its step.
PASSED_ON_PREFIX = "DAGSTER_SLURM_GRANT_"

#: Variables of the surrounding job step. A program that finds them takes itself for a task of that step.
STEP_VARIABLES = re.compile(r"^(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SQUEUE|SCANCEL|SACCT|PMI|PMIX|PMI2)(_|$)|^PMI[X2]?_?")

#: Variables of this agent, and those that a program would find in a session it does not belong to.
OWN_VARIABLES = re.compile(r"^DAGSTER_SLURM_(NODE_IP|OBJECT_STORE_BYTES|GRANT_\w+|WORK_FILE|SESSION_DIR|NODE_FILE)$")

#: Ray variables of a profile that would point our processes at another cluster or token.
RAY_VARIABLES = (
    "RAY_ADDRESS",
    "RAY_REDIS_ADDRESS",
    "RAY_TMPDIR",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_NAMESPACE",
)


@dataclass(frozen=True)
class Host:
    """The machine below the grant, shared with other allocations."""

    cpus: int
    memory_bytes: int
    shared_memory_bytes: int
    shared_memory_free_bytes: int


@dataclass(frozen=True)
class Grant:
    """This node's share of the allocation. ``memory_bytes`` is never more than the host has."""

    slurm_job_id: str
    node: str
    node_index: int
    node_count: int
    cpus: int
    gpus: int
    memory_bytes: int


@dataclass(frozen=True)
class RayShare:
    """What ``ray start`` is told. ``memory_bytes`` is Ray's logical memory for tasks, without the object store."""

    cpus: int
    gpus: int
    memory_bytes: int
    object_store_bytes: int


def read_grant(environ: Mapping[str, str], host: Host, hostname: str) -> Grant:
    """The grant of this node. ``hostname`` is the node's name where Slurm gives none (outside of a job step)."""
    node_index = _number(environ.get("SLURM_NODEID")) or 0
    node_count = _number(environ.get("SLURM_JOB_NUM_NODES")) or _number(environ.get("SLURM_NNODES")) or 1
    cpus = granted_cpus(environ, node_index, host.cpus)
    gpus = granted_gpus(environ)
    return Grant(
        slurm_job_id=environ.get("SLURM_JOB_ID", ""),
        node=environ.get("SLURMD_NODENAME") or hostname,
        node_index=node_index,
        node_count=node_count,
        cpus=cpus,
        gpus=gpus,
        memory_bytes=granted_memory(environ, cpus, gpus, host),
    )


def per_node_counts(text: str | None) -> tuple[int, ...]:
    """``8(x2),4`` -> (8, 8, 4); () for None or anything malformed."""
    counts: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return ()
        counts.extend([int(match.group(1))] * int(match.group(2) or 1))
    return tuple(counts)


def granted_cpus(environ: Mapping[str, str], node_index: int, host_cpus: int) -> int:
    """CPUs of this node.

    The allocation's own list comes first: inside a step ``SLURM_CPUS_ON_NODE`` can be the step's share only.
    """
    counts = per_node_counts(environ.get("SLURM_JOB_CPUS_PER_NODE"))
    if node_index < len(counts):
        return counts[node_index]
    return _number(environ.get("SLURM_CPUS_ON_NODE")) or host_cpus


def device_count(text: str | None) -> int | None:
    """Number of devices in a list (``0,2-3``, ``GPU-1a,GPU-2b``); 0 for words (``NoDevFiles``); None for None."""
    if text is None:
        return None
    total = 0
    for part in (piece.strip() for piece in text.split(",")):
        interval = re.fullmatch(r"(\d+)-(\d+)", part)
        if interval is not None:
            total += max(0, int(interval.group(2)) - int(interval.group(1)) + 1)
        elif part.isdigit() or part.startswith(("GPU-", "MIG-")):
            total += 1
    return total


def granted_gpus(environ: Mapping[str, str]) -> int:
    """GPUs of this node: what Slurm says, never more than ``CUDA_VISIBLE_DEVICES`` shows (Ray would not start then)."""
    granted = _number(environ.get("SLURM_GPUS_ON_NODE"))
    if granted is None:
        granted = device_count(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"))
    visible = device_count(environ.get("CUDA_VISIBLE_DEVICES"))
    known = [count for count in (granted, visible) if count is not None]
    return min(known) if known else 0


def granted_memory(environ: Mapping[str, str], cpus: int, gpus: int, host: Host) -> int:
    """Bytes of this node. Slurm's numbers are MiB; 0 means the whole node; without any number: by the share of CPUs."""
    forms = (("MEM_PER_NODE", 1), ("MEM_PER_CPU", cpus), ("MEM_PER_GPU", gpus))
    for form, factor in forms:
        number = _number(environ.get(PASSED_ON_PREFIX + form) or environ.get("SLURM_" + form))
        if number is None or factor == 0:
            continue
        return min(number * factor * MEBIBYTE, host.memory_bytes) if number else host.memory_bytes
    return min(host.memory_bytes, host.memory_bytes * cpus // max(1, host.cpus))


def ray_share(grant: Grant, host: Host, *, takes_work: bool, object_store_bytes: int | None = None) -> RayShare:
    """What Ray gets of the grant.

    ``/dev/shm`` belongs to the host, not to the allocation. Each allocation takes a part of it in proportion to its
    memory, so that all of a host's allocations fit. ``object_store_bytes`` overrides the computed size.
    """
    share_of_host = grant.memory_bytes / max(1, host.memory_bytes)
    computed = min(
        OBJECT_STORE_SHARE * grant.memory_bytes,
        0.9 * host.shared_memory_bytes * share_of_host,
        0.9 * host.shared_memory_free_bytes,
    )
    store = max(SMALLEST_OBJECT_STORE_BYTES, object_store_bytes or int(computed))
    memory = max(MEBIBYTE, grant.memory_bytes - store - RESERVED_BYTES)
    return RayShare(
        cpus=grant.cpus if takes_work else 0,
        gpus=grant.gpus if takes_work else 0,
        memory_bytes=memory,
        object_store_bytes=store,
    )


def without_step_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to the job step or to another Ray cluster."""
    return {
        name: value
        for name, value in environ.items()
        if not STEP_VARIABLES.match(name) and name not in RAY_VARIABLES and not OWN_VARIABLES.match(name)
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
