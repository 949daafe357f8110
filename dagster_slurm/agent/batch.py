"""The batch step: this node alone, or all nodes of the allocation through ``srun``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from . import processes
from .decide import TERM_DRAIN_SECONDS
from .files import Session, create_exclusively
from .look import signal_file
from .node import run_node, say
from .records import Settings
from .steps import srun_command, srun_environment

#: The nodes' agents finish their work after a TERM, then end within a few seconds.
END_GRACE_SECONDS = TERM_DRAIN_SECONDS + 12.0


def node_count(environ: Mapping[str, str]) -> int:
    """Nodes of the allocation; 1 outside of one."""
    text = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    return int(text) if text.isdigit() else 1


def node_agent(session: Session, settings: Settings) -> list[str]:
    """Command line of one node's agent; in a container, with the container's Python."""
    here = os.path.dirname(os.path.abspath(__file__))
    python = (settings.python or "python3") if settings.container_command else sys.executable
    words = [python, "-u", here, "node", f"--session={session.directory}", f"--token={settings.token}"]
    return [*settings.container_command, *words]


def run_batch(session: Session, settings: Settings) -> int:
    """Returns the exit status of the allocation."""
    nodes = node_count(os.environ)
    agent = node_agent(session, settings)
    if nodes <= 1:
        if settings.container_command:
            # The same process goes on inside, so that Slurm's signals reach it.
            os.execvp(agent[0], agent)
        return run_node(session, settings)
    received: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: received.append(got))
    for number in (signal.SIGUSR1, signal.SIGTERM):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(signal_file(session, settings.token, number))
    processes.become_subreaper()
    child = processes.start(srun_command(nodes, agent), srun_environment(os.environ))
    say(f"started the agents of {nodes} nodes")
    return wait_for_nodes(session, settings, child, received)


def wait_for_nodes(session: Session, settings: Settings, child: subprocess.Popen[bytes], received: list[int]) -> int:
    """Until all agents have ended; signals go to them through files, since srun does not forward each of them."""
    end_by: float | None = None
    while child.poll() is None:
        while received:
            number = received.pop(0)
            noted = signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM
            create_exclusively(signal_file(session, settings.token, noted), "")
            say(f"passing {signal.Signals(noted).name} on to all nodes")
            if noted == signal.SIGTERM and end_by is None:
                end_by = time.monotonic() + END_GRACE_SECONDS
        if end_by is not None and time.monotonic() > end_by:
            processes.end_tree(child, grace_seconds=5.0)
        time.sleep(0.2)
    processes.end_everything()
    return 0 if end_by is not None else child.returncode
