"""What a box is: its nodes, partitions, accounts, names and ports."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BoxError

# The kernel's limit for the path of a Unix socket, without the final zero byte (unix(7)).
_SOCKET_PATH_LIMIT = 107

# Every process of a box carries this variable; its value is the directory of the box.
MARKER = "DAGSTER_SLURM_BOX"


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes that form one partition.

    Attributes:
        partition: Name of the partition; also the nodes' feature and the start of their names.
        count: Number of nodes.
        cpus: CPUs of each node; more than the host has are fine.
        memory_mib: RealMemory of each node in MiB; nothing enforces it.
        gpu_type: Slurm's GPU type, None for nodes without GPUs.
        gpus: GPUs of each node.
        max_time: MaxTime of the partition in Slurm's form.
        default: Whether jobs without a partition go here.
    """

    partition: str
    count: int
    cpus: int = 4
    memory_mib: int = 8000
    gpu_type: str | None = None
    gpus: int = 0
    max_time: str = "1-00:00:00"
    default: bool = False


DEFAULT_GROUPS = (
    NodeGroup("gpu-a", count=4, gpu_type="a100", gpus=4, max_time="12:00:00"),
    NodeGroup("gpu-b", count=2, gpu_type="v100", gpus=2, max_time="04:00:00"),
    NodeGroup("cpu", count=4, default=True),
)


@dataclass(frozen=True)
class Ports:
    """The TCP ports of a box, one block of consecutive numbers: four services, then one per node."""

    first: int

    @property
    def sshd(self) -> int:
        return self.first

    @property
    def slurmctld(self) -> int:
        return self.first + 1

    @property
    def slurmdbd(self) -> int:
        return self.first + 2

    @property
    def mariadbd(self) -> int:
        return self.first + 3

    @property
    def slurmd(self) -> int:
        return self.first + 4


@dataclass(frozen=True)
class BoxDefinition:
    """Everything that the configuration files of one box depend on.

    Attributes:
        directory: Absolute path of the box's directory; everything is below it.
        tag: Short lower-case word that is unique among the boxes of the host; part of cluster and node names.
        ports: The box's ports, all on loopback.
        hostname: The host's short name, which slurmctld compares with its configuration.
        admin: User that runs the daemons: root, or the current user.
        job_user: User that logs in over SSH and owns the jobs; equal to `admin` when that is not root.
        database_password: Password of the accounting database.
        groups: Nodes and partitions.
        accounts: Accounts of the job user, the default one first.
        qos: Names of the QOS beside Slurm's own "normal" that the job user may use.
        min_job_age_seconds: How long slurmctld keeps showing an ended job.
        extra_slurm_conf: Further lines of slurm.conf; later lines win over earlier ones where Slurm allows it.
    """

    directory: str
    tag: str
    ports: Ports
    hostname: str
    admin: str
    job_user: str
    database_password: str
    groups: tuple[NodeGroup, ...] = DEFAULT_GROUPS
    accounts: tuple[str, ...] = ("research", "teaching")
    qos: tuple[str, ...] = ("short",)
    min_job_age_seconds: int = 30
    extra_slurm_conf: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        longest = max(len(f"{self.directory}/spool/{n}/{n}_1234567.4294967291") for n in self.node_names())
        if longest > _SOCKET_PATH_LIMIT:
            raise BoxError(
                f"the path {self.directory} is too long for Unix sockets: shorten it by "
                f"{longest - _SOCKET_PATH_LIMIT} characters"
            )

    @property
    def cluster_name(self) -> str:
        return f"box_{self.tag}"

    @property
    def slurm_conf(self) -> str:
        return f"{self.directory}/etc/slurm.conf"

    @property
    def munge_socket(self) -> str:
        return f"{self.directory}/run/munge/socket"

    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes, in the order of their ports."""
        return tuple(
            f"{group.partition}-{self.tag}-{number}" for group in self.groups for number in range(1, group.count + 1)
        )


def port_count(groups: tuple[NodeGroup, ...]) -> int:
    """Return how many consecutive ports a box with these nodes needs."""
    return 4 + sum(group.count for group in groups)
