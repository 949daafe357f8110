"""The nested options of ``SlurmComputeResource``: queue, head, worker, limits; and the shapes made from them."""

from __future__ import annotations

from typing import Any

import attrs
import dagster as dg
from pydantic import Field

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.allocations.workers import DEFAULT_LIVE_PER_SESSION, DEFAULT_SUBMISSIONS_PER_CALL
from dagster_slurm.errors import ConfigurationError

_RESOURCE = "SlurmComputeResource"


class SlurmQueueOptions(dg.Config):
    """What all allocations share unless their own options say otherwise. Left out: not mentioned to Slurm."""

    partition: str | None = Field(default=None, description="Slurm partition.")
    account: str | None = Field(default=None, description="Account that is charged.")
    qos: str | None = Field(default=None, description="Quality of service.")
    reservation: str | None = Field(default=None, description="Reservation to use.")
    constraint: str | None = Field(default=None, description="Node features, as sbatch --constraint takes them.")
    exclude: str | None = Field(default=None, description="Nodes that are not to be used, as a Slurm host list.")
    mem: str | None = Field(default=None, description="Memory per node, such as 8G.")
    mem_per_cpu: str | None = Field(default=None, description="Memory per CPU, such as 2G; instead of mem.")
    mem_per_gpu: str | None = Field(default=None, description="Memory per GPU, such as 40G; instead of mem.")
    time_limit: str | None = Field(
        default=None, description="Walltime as sbatch --time takes it, such as 02:00:00; a lone number is minutes."
    )
    extra_options: list[str] | None = Field(
        default=None, description="Further sbatch options, each with its value as one item; an empty list clears them."
    )


class _AllocationOptions(SlurmQueueOptions):
    """Left out: as in the queue options. An empty text clears what the queue options say."""

    nodes: int | None = Field(default=None, description="Nodes of one allocation; 1 when left out.")
    gpus_per_node: int | None = Field(default=None, description="GPUs of each node; 0 is stated to Slurm as 0.")
    gpu_type: str | None = Field(default=None, description="Type of these GPUs in Slurm's words, such as a100.")
    cpus_per_task: int | None = Field(default=None, description="CPUs of each node.")
    drain_window_seconds: int | None = Field(
        default=None, description="Seconds before its walltime at which it stops taking work; 120 when left out."
    )
    ray_start_args: list[str] | None = Field(default=None, description="Further arguments of ray start.")
    ray_resources: dict[str, float] | None = Field(default=None, description="Custom Ray resources of each node.")


class SlurmHeadOptions(_AllocationOptions):
    """The allocation of Ray's head, which also runs the payload."""

    head_only: bool = Field(
        default=True, description="The head offers Ray no CPUs or GPUs: all tasks run on worker allocations."
    )
    nodelist: str | None = Field(default=None, description="Nodes that the head must use, as a Slurm host list.")


class SlurmWorkerOptions(_AllocationOptions):
    """The shape that worker allocations inherit from."""


class SlurmLimits(dg.Config):
    """Bounds that hold whatever a policy asks for."""

    submissions_per_call: int = Field(
        default=DEFAULT_SUBMISSIONS_PER_CALL, description="Most submissions of one reconciliation."
    )
    live_per_session: int = Field(
        default=DEFAULT_LIVE_PER_SESSION, description="Most live allocations of one session, the head included."
    )


@attrs.frozen
class Shapes:
    """What the options amount to: the head's shape, and the one that workers inherit from."""

    head: EffectiveShape
    worker: EffectiveShape


def shapes_of(queue: SlurmQueueOptions, head: SlurmHeadOptions, worker: SlurmWorkerOptions) -> Shapes:
    """Make the shapes.

    Raises:
        ConfigurationError: a value that Slurm does not take; ``field`` names it as the user wrote it.
    """
    base = _inherit("queue", queue, None)
    return Shapes(head=_inherit("head", head, base), worker=_inherit("worker", worker, base))


def check_limits(limits: SlurmLimits) -> None:
    """Raise ConfigurationError for a bound below 1."""
    for name in ("submissions_per_call", "live_per_session"):
        if getattr(limits, name) < 1:
            raise ConfigurationError(
                f"{name} must be at least 1, not {getattr(limits, name)}", field=f"{_RESOURCE}.limits.{name}"
            )


def _inherit(part: str, options: SlurmQueueOptions, base: EffectiveShape | None) -> EffectiveShape:
    try:
        return inherit(SlurmWorkerAllocationConfig(**_stated(part, options)), base)
    except ConfigurationError as error:
        name = (error.field or "").rpartition(".")[2]
        raise ConfigurationError(
            error.message,
            field=f"{_RESOURCE}.{part}.{name}" if name else f"{_RESOURCE}.{part}",
            remedy=error.remedy,
        ) from error


def _stated(part: str, options: SlurmQueueOptions) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    for name, value in options.model_dump().items():
        if value is not None:
            # Config fields cannot tell "left out" from None; the empty text is the way to clear.
            stated[name] = tuple(value) if isinstance(value, list) else (None if value == "" else value)
    gpu_type = stated.pop("gpu_type", None)
    if gpu_type is not None:
        if stated.get("gpus_per_node") is None:
            raise ConfigurationError(
                f"gpu_type is {gpu_type!r}, but not how many of them.",
                field=f"{_RESOURCE}.{part}.gpus_per_node",
                remedy="state gpus_per_node beside gpu_type.",
            )
        stated["gpus_per_node"] = f"{gpu_type}:{stated['gpus_per_node']}"
    return stated
