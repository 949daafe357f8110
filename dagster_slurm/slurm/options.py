"""sbatch's options: one allocation's shape as separate arguments, the same for an estimate and a submission."""

from __future__ import annotations

from typing import Protocol

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.arguments import (
    COMMENT_LIMIT_BYTES,
    SIGNAL_WINDOW_LIMIT_SECONDS,
    file_pattern,
    plain_text,
    whole_number,
)
from dagster_slurm.slurm.arguments import (
    job_name as checked_job_name,
)
from dagster_slurm.slurm.extra_options import check_extra_options


class Shape(Protocol):
    """What `sbatch_arguments` reads of a worker's shape; see `dagster_slurm.allocations.config.EffectiveShape`."""

    @property
    def partition(self) -> str | None: ...
    @property
    def account(self) -> str | None: ...
    @property
    def qos(self) -> str | None: ...
    @property
    def reservation(self) -> str | None: ...
    @property
    def constraint(self) -> str | None: ...
    @property
    def nodes(self) -> int: ...
    @property
    def gpus_per_node(self) -> int | str | None: ...
    @property
    def cpus_per_task(self) -> int | None: ...
    @property
    def mem(self) -> str | None: ...
    @property
    def mem_per_cpu(self) -> str | None: ...
    @property
    def mem_per_gpu(self) -> str | None: ...
    @property
    def time_limit(self) -> str | None: ...
    @property
    def nodelist(self) -> str | None: ...
    @property
    def exclude(self) -> str | None: ...
    @property
    def extra_options(self) -> tuple[str, ...]: ...
    @property
    def signal_window_seconds(self) -> int: ...


def sbatch_arguments(
    shape: Shape,
    *,
    job_name: str,
    comment: str,
    output: str,
    chdir: str | None = None,
    signal_window_seconds: int | None = None,
    cluster: str | None = None,
    test_only: bool = False,
) -> tuple[str, ...]:
    """The options of one job, without the word ``sbatch`` and without the script; each is one argument.

    Args:
        shape: What to ask for; values of None are not mentioned, so that the cluster's defaults hold.
        job_name: Name of the job, shared by all jobs of a session.
        comment: Comment of the job, at most 1,024 bytes.
        output: Literal path of the log for standard output and error.
        chdir: Literal working directory; None leaves it to sbatch.
        signal_window_seconds: How long before the walltime the batch process gets SIGUSR1 (Slurm may send it up to
            60 seconds earlier); 0 sends none; None takes the shape's own.
        cluster: Name of the cluster; None means the one that the login node belongs to.
        test_only: Ask when the job could start instead of submitting it. The arguments are then complete:
            a script is not needed.

    The job gets the environment of the submitting shell (``--export=ALL``, said openly so that no default of the
    site or profile decides): that shell reads no profile and holds what `remote_setup` set. ``NONE`` and lists of
    names would make every node start a login shell of the user first, which can fail or take minutes.

    Raises:
        ConfigurationError: a value cannot be passed on as meant; ``field`` names it.
    """
    if len(comment.encode(errors="replace")) > COMMENT_LIMIT_BYTES:
        raise ConfigurationError(f"The comment is longer than {COMMENT_LIMIT_BYTES} bytes.", field="comment")
    window = shape.signal_window_seconds if signal_window_seconds is None else signal_window_seconds
    whole_number(window, "signal_window_seconds", least=0, most=SIGNAL_WINDOW_LIMIT_SECONDS)
    check_extra_options(shape.extra_options)
    arguments = [
        f"--job-name={checked_job_name(job_name, 'job_name')}",
        f"--comment={plain_text(comment, 'comment')}",
        f"--output={file_pattern(output, 'output')}",
        "--parsable",
        "--no-requeue",
        "--export=ALL",
    ]
    if window:
        arguments.append(f"--signal=B:USR1@{window}")
    if chdir is not None:
        arguments.append(f"--chdir={plain_text(chdir, 'chdir')}")
    if cluster is not None:
        arguments.append(f"--clusters={plain_text(cluster, 'cluster')}")
    arguments += _resource_arguments(shape)
    arguments += shape.extra_options
    if test_only:
        arguments += ["--test-only", "--wrap=true"]
    return tuple(arguments)


def _resource_arguments(shape: Shape) -> list[str]:
    arguments = [
        f"--nodes={whole_number(shape.nodes, 'nodes', least=1)}",
        "--ntasks-per-node=1",
    ]
    # Zero GPUs is said too: sites may demand a statement on every job of a partition.
    stated: tuple[tuple[str, int | str | None], ...] = (
        ("gpus-per-node", shape.gpus_per_node),
        ("cpus-per-task", shape.cpus_per_task),
        ("mem", shape.mem),
        ("mem-per-cpu", shape.mem_per_cpu),
        ("mem-per-gpu", shape.mem_per_gpu),
        ("time", shape.time_limit),
        ("partition", shape.partition),
        ("account", shape.account),
        ("qos", shape.qos),
        ("reservation", shape.reservation),
        ("constraint", shape.constraint),
        ("nodelist", shape.nodelist),
        ("exclude", shape.exclude),
    )
    for name, value in stated:
        if value is not None:
            arguments.append(f"--{name}={plain_text(str(value), name.replace('-', '_'))}")
    return arguments
