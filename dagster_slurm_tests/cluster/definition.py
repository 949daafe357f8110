"""What a box is: its nodes, partitions and accounts, and the text of every configuration file.

Pure: nothing here reads, writes or starts anything, so the same definition serves processes on
one host and a container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class Account:
    """A Slurm account that the job user belongs to."""

    name: str


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
    accounts: tuple[Account, ...] = (Account("research"), Account("teaching"))
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


def _span(prefix: str, first: int, count: int) -> str:
    return f"{prefix}{first}" if count == 1 else f"{prefix}[{first}-{first + count - 1}]"


def _node_span(definition: BoxDefinition, group: NodeGroup) -> str:
    return _span(f"{group.partition}-{definition.tag}-", 1, group.count)


def render_slurm_conf(definition: BoxDefinition) -> str:
    """Return slurm.conf."""
    box = definition.directory
    lines = [
        f"ClusterName={definition.cluster_name}",
        f"SlurmctldHost={definition.hostname}(127.0.0.1)",
        f"SlurmctldPort={definition.ports.slurmctld}",
        f"SlurmUser={definition.admin}",
        f"SlurmdUser={definition.admin}",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "AuthType=auth/munge",
        f"AuthInfo=socket={definition.munge_socket}",
        "CredType=cred/munge",
        f"StateSaveLocation={box}/state",
        f"SlurmdSpoolDir={box}/spool/%n",
        f"SlurmctldPidFile={box}/run/slurmctld.daemon.pid",
        f"SlurmdPidFile={box}/run/slurmd.%n.daemon.pid",
        # With -D the daemons log to stderr, which goes to the log directory.
        "SlurmctldSyslogDebug=quiet",
        "SlurmdSyslogDebug=quiet",
        f"TaskProlog={box}/etc/task-prolog",
        "MailProg=/bin/true",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobCompType=jobcomp/none",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1000",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=2",
        f"MinJobAge={definition.min_job_age_seconds}",
        "KillWait=5",
        "GresTypes=gpu",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={definition.ports.slurmdbd}",
        f"AccountingStoragePass={definition.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=associations",
        "AccountingStoreFlags=job_comment",
    ]
    first_port = definition.ports.slurmd
    for group in definition.groups:
        gres = f" Gres=gpu:{group.gpu_type}:{group.gpus}" if group.gpus else ""
        lines.append(
            f"NodeName={_node_span(definition, group)} NodeAddr=127.0.0.1 NodeHostname={definition.hostname}"
            f" Port={_span('', first_port, group.count)} CPUs={group.cpus} RealMemory={group.memory_mib}{gres}"
            f" Feature={group.partition} State=UNKNOWN"
        )
        first_port += group.count
    lines += [
        f"PartitionName={group.partition} Nodes={_node_span(definition, group)} Default={'YES' if group.default else 'NO'}"
        f" MaxTime={group.max_time} DefaultTime=00:30:00 State=UP"
        for group in definition.groups
    ]
    return "\n".join([*lines, *definition.extra_slurm_conf, ""])


def gpu_devices(definition: BoxDefinition) -> tuple[str, ...]:
    """Return the files that stand for GPU devices: Slurm wants existing ones, whatever they are."""
    return tuple(
        f"{definition.directory}/dev/{group.gpu_type}-{number}"
        for group in definition.groups
        for number in range(group.gpus)
    )


def render_gres_conf(definition: BoxDefinition) -> str:
    """Return gres.conf."""
    return "".join(
        f"NodeName={_node_span(definition, group)} Name=gpu Type={group.gpu_type}"
        f" File={_span(f'{definition.directory}/dev/{group.gpu_type}-', 0, group.gpus)}\n"
        for group in definition.groups
        if group.gpus
    )


def render_slurmdbd_conf(definition: BoxDefinition) -> str:
    """Return slurmdbd.conf; it holds the database password, so only the administrator may read it."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={definition.munge_socket}",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={definition.ports.slurmdbd}",
        f"SlurmUser={definition.admin}",
        f"PidFile={definition.directory}/run/slurmdbd.daemon.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={definition.ports.mariadbd}",
        "StorageUser=slurm",
        f"StoragePass={definition.database_password}",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join([*lines, ""])


def render_mariadb_cnf(definition: BoxDefinition) -> str:
    """Return MariaDB's option file; durability is given up for speed, a box does not outlive a crash of the host."""
    box = definition.directory
    lines = [
        "[mariadbd]",
        f"datadir={box}/database",
        f"socket={box}/run/mariadbd.socket",
        f"pid-file={box}/run/mariadbd.daemon.pid",
        f"init-file={box}/etc/database.sql",
        "bind-address=127.0.0.1",
        f"port={definition.ports.mariadbd}",
        f"user={definition.admin}",
        "skip-name-resolve",
        "performance-schema=OFF",
        "innodb-buffer-pool-size=64M",
        "innodb-log-file-size=64M",
        "innodb-lock-wait-timeout=900",
        "innodb-flush-log-at-trx-commit=0",
        "innodb-flush-method=nosync",
        "innodb-fast-shutdown=2",
    ]
    return "\n".join([*lines, ""])


def render_database_sql(definition: BoxDefinition) -> str:
    """Return what MariaDB runs at each start: the accounting database and its user."""
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        f"CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{definition.database_password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n"
    )


def render_sshd_config(definition: BoxDefinition) -> str:
    """Return sshd_config; level VERBOSE logs each command, which is how commands are counted."""
    box = definition.directory
    lines = [
        f"Port {definition.ports.sshd}",
        "ListenAddress 127.0.0.1",
        f"HostKey {box}/etc/ssh_host_ed25519_key",
        f"AuthorizedKeysFile {box}/etc/authorized_keys",
        f"AllowUsers {definition.job_user}",
        "AuthenticationMethods publickey",
        # The files lie below /var/tmp, which everybody may write to; they themselves are private.
        "StrictModes no",
        "UsePAM no",
        "UseDNS no",
        "PidFile none",
        "LogLevel VERBOSE",
        "MaxStartups 200",
        "PrintMotd no",
        "Subsystem sftp internal-sftp",
        f"SetEnv {MARKER}={box}",
    ]
    return "\n".join([*lines, ""])


def render_task_prolog(definition: BoxDefinition) -> str:
    """Return the program whose output gives every task of every job the box's marker, whatever was exported."""
    return f"#!/bin/sh\necho 'export {MARKER}={definition.directory}'\n"


@dataclass(frozen=True)
class File:
    """A file of the box: text and mode, owned by the administrator."""

    text: str
    mode: int = field(default=0o644)


def render_files(definition: BoxDefinition) -> Mapping[str, File]:
    """Return the configuration files by path relative to the box's directory."""
    files = {
        "etc/slurm.conf": File(render_slurm_conf(definition)),
        "etc/gres.conf": File(render_gres_conf(definition)),
        "etc/slurmdbd.conf": File(render_slurmdbd_conf(definition), 0o600),
        "etc/mariadb.cnf": File(render_mariadb_cnf(definition), 0o600),
        "etc/database.sql": File(render_database_sql(definition), 0o600),
        "etc/sshd_config": File(render_sshd_config(definition), 0o600),
        "etc/task-prolog": File(render_task_prolog(definition), 0o755),
    }
    devices = {path.removeprefix(definition.directory + "/"): File("") for path in gpu_devices(definition)}
    return {**files, **devices}


def remote_setup(definition: BoxDefinition) -> str:
    """Return the shell lines that make Slurm's commands work for the job user in a shell that reads no profile."""
    return f"export SLURM_CONF='{definition.slurm_conf}'\nexport {MARKER}='{definition.directory}'"


def daemon_commands(definition: BoxDefinition, programs: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Return the command line of each daemon by name, all of them in the foreground, in the order of their start."""
    box = definition.directory
    commands: dict[str, tuple[str, ...]] = {
        "munged": (
            programs["munged"],
            "--foreground",
            f"--key-file={box}/etc/munge.key",
            f"--socket={definition.munge_socket}",
            f"--pid-file={box}/run/munge/munged.daemon.pid",
            f"--log-file={box}/log/munged.log",
            f"--seed-file={box}/run/munge/seed",
            "--num-threads=4",
        ),
        "sshd": (programs["sshd"], "-D", "-e", "-f", f"{box}/etc/sshd_config"),
        "mariadbd": (programs["mariadbd"], f"--defaults-file={box}/etc/mariadb.cnf"),
        "slurmdbd": (programs["slurmdbd"], "-D"),
        "slurmctld": (programs["slurmctld"], "-D", "-f", definition.slurm_conf),
    }
    for node in definition.node_names():
        commands[f"slurmd.{node}"] = (programs["slurmd"], "-D", "-N", node, "-f", definition.slurm_conf)
    return commands
