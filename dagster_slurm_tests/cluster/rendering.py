"""The configuration files and command lines of a box, as text.

Pure: nothing here reads, writes or starts anything, so that the same definition can serve processes on one host and
a container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .definition import MARKER, BoxDefinition, NodeGroup


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
        f"PartitionName={group.partition} Nodes={_node_span(definition, group)}"
        f" Default={'YES' if group.default else 'NO'} MaxTime={group.max_time} DefaultTime=00:30:00 State=UP"
        for group in definition.groups
    ]
    return "\n".join([*lines, *definition.extra_slurm_conf, ""])


def gpu_devices(definition: BoxDefinition) -> tuple[str, ...]:
    """Return the paths that stand for GPUs.

    Links to any character device will do; for plain files Slurm sets no CUDA_VISIBLE_DEVICES in jobs.
    """
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
    mode: int = 0o644


def render_files(definition: BoxDefinition) -> Mapping[str, File]:
    """Return the configuration files by path relative to the box's directory."""
    return {
        "etc/slurm.conf": File(render_slurm_conf(definition)),
        "etc/gres.conf": File(render_gres_conf(definition)),
        "etc/slurmdbd.conf": File(render_slurmdbd_conf(definition), 0o600),
        "etc/mariadb.cnf": File(render_mariadb_cnf(definition), 0o600),
        "etc/database.sql": File(render_database_sql(definition), 0o600),
        "etc/sshd_config": File(render_sshd_config(definition), 0o600),
        "etc/task-prolog": File(render_task_prolog(definition), 0o755),
    }


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
