"""Steps of the allocation: how ``srun`` is called for an agent on each node, and for a step that only listens."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

from . import processes
from .grant import PASSED_ON_PREFIX

MEMORY_FORMS = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU")

#: Variables that srun takes as options. Those of memory exclude each other; those by task narrow the step down to a
#: part of the node (srun 22.05 and newer take them for --exact).
SRUN_INPUT = (
    *MEMORY_FORMS,
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NPROCS",
)

#: Between TERM and KILL for ``srun``; its task ends at once.
END_GRACE_SECONDS = 2.0

#: Notes the first SIGTERM in the file that it is given. ``wait`` returns for a signal, a plain ``sleep`` would not.
LISTENER = """trap ': >"$0"; exit 0' TERM
while :; do sleep 3600 & wait; done"""


def srun_command(nodes: int, agent: list[str]) -> list[str]:
    """One agent on each node. One that ends does not end the others, and a step inside is not kept from its CPUs."""
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--unbuffered",
        *agent,
    ]


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The batch step's environment; the grant's memory goes on under names that ``grant`` reads and srun does not."""
    kept = {name: value for name, value in environ.items() if name not in SRUN_INPUT}
    for name in MEMORY_FORMS:
        if name in environ:
            kept[PASSED_ON_PREFIX + name[len("SLURM_") :]] = environ[name]
    return kept


class Listener:
    """Hears what Slurm tells the tasks of an allocation and not its batch step.

    A preemption with grace time begins with SIGTERM to every task; a batch script hears of it when the grace time is
    over (unless the site sends it the job's signal, ``preempt_send_user_signal``). So a small step listens for an agent
    that is the batch script itself. Nothing depends on it: where it cannot be started, the grace time is not used.

    Args:
        directory: A private directory on this node.
        environ: The batch step's environment.
        say: Writes a line to the job's log.
    """

    def __init__(self, directory: str, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._file = os.path.join(directory, "task-got-TERM")
        self._say = say
        self._over = False
        command = [*srun_command(1, []), "--mpi=none", "--quiet", "--input=none", "--output=none"]
        command += ["/bin/sh", "-c", LISTENER, self._file]
        # srun would call every end of the step an error, as the last words of each log.
        self._child = processes.start(command, srun_environment(environ), output=subprocess.DEVNULL)

    @staticmethod
    def is_needed(environ: Mapping[str, str], nodes: int) -> bool:
        """Whether this agent is the batch script of a real allocation; with several nodes each agent is a task."""
        found = shutil.which("srun", path=environ.get("PATH"))
        return nodes == 1 and "SLURM_JOB_NODELIST" in environ and found is not None

    def child_pids(self) -> list[int]:
        """Processes that are waited for here."""
        return [self._child.pid]

    def heard(self) -> bool:
        """Whether the tasks were told to end; True once."""
        if self._over:
            return False
        status, heard = self._child.poll(), os.path.exists(self._file)
        self._over = heard or status is not None
        if heard:
            self._say("Slurm told the tasks of this allocation to end (SIGTERM), as at the beginning of a preemption")
        elif status is not None:
            self._say(f"the step that listens for a preemption has ended (srun: {status}); its grace time is not used")
        return heard

    def end(self) -> None:
        """End the step."""
        processes.end_tree(self._child, grace_seconds=END_GRACE_SECONDS)
