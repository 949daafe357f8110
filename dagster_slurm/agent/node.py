"""The agent of one node: looks, decides (``decide.py``), acts, reports, until it is time to leave."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import decide, grant, network, processes, raystart
from .files import Session, create_exclusively, write_document
from .look import Look, read_host
from .payloads import Payloads
from .raychild import RayChild
from .records import Settings
from .steps import Listener

TICK_SECONDS = 0.25
REPORT_SECONDS = 2.0

#: How often the shared filesystem is looked at: while something is about to change, and else.
BUSY_LOOK_SECONDS = 1.0
CALM_LOOK_SECONDS = 2.0

#: How often new payloads are looked for.
ACCEPT_SECONDS = 0.5

#: How often ended orphans (workers of a raylet that has ended) are collected.
REAP_SECONDS = 30.0

#: What payloads get between TERM and KILL when the head ends.
PAYLOAD_GRACE_SECONDS = 2.0


def say(text: str) -> None:
    """One line in the job's log."""
    print(f"{time.strftime('%H:%M:%S')} dagster-slurm agent: {text}", flush=True)


class NodeAgent:
    """Runs Ray on one node for as long as the session wants it."""

    def __init__(self, session: Session, settings: Settings, environ: Mapping[str, str]) -> None:
        self._session = session
        self._settings = settings
        self._python = settings.python or sys.executable
        host = read_host()
        self._grant = grant.read_grant(environ, host, socket.gethostname().split(".")[0])
        self._host = host
        self._environ = environ
        self._report_file = session.node(self._grant.slurm_job_id, self._grant.node)
        self._ray_environ = {
            **raystart.ray_environment(environ, session.token_file),
            "DAGSTER_SLURM_SESSION_DIR": session.directory,
            "DAGSTER_SLURM_NODE_FILE": self._report_file,
        }
        self._payloads = Payloads(
            session.directory,
            self._grant.slurm_job_id,
            python=self._python,
            environ=self._ray_environ,
            node_file=self._report_file,
            say=say,
        )
        self._look = Look(session, settings, self._grant)
        self._limits = decide.Limits(settings.rejoin_timeout_seconds, settings.orphan_timeout_seconds)
        self._memory = decide.Memory(started_at=time.monotonic())
        self._ray: RayChild | None = None
        self._listener: Listener | None = None
        self._private = ""
        self._starts = 0
        self._beat = 0
        self._reported_at = float("-inf")
        self._reported: tuple[str, str | None] | None = None
        self._write_failed = False
        self._accepted_at = float("-inf")
        self._reaped_at = time.monotonic()

    def run(self) -> int:
        """Until it is time to leave; returns the exit status. Nothing that was started here is left afterwards."""
        self._session.create_folders()
        processes.raise_open_files_limit()
        processes.become_subreaper()
        self._private = raystart.make_private_directory(self._environ, self._grant.slurm_job_id)
        say(f"node {self._grant.node} of job {self._grant.slurm_job_id}: {self._grant}")
        leave = decide.Leave(1, "the agent failed; see the job's log")
        try:
            leave = self._loop()
        finally:
            self._end(leave)
        return leave.exit_status

    def receive(self, number: int) -> None:
        """A signal has arrived (called from the signal handler)."""
        self._look.receive(number)

    # -- the loop --------------------------------------------------------------------------------

    def _loop(self) -> decide.Leave:
        if raystart.installed_ray_version() is None:
            return decide.Leave(1, f"{sys.executable} cannot import ray; set the session's Python to one that can")
        interface = self._settings.network_interface
        if interface is not None and network.interface_address(interface) is None:
            there = ", ".join(name for _, name in socket.if_nameindex())
            return decide.Leave(1, f"this node has no IPv4 address on the interface {interface}; it has: {there}")
        # The first report gives the filesystem's clock, without which the age of a file is not known.
        self._write_report("waiting", None, None)
        while True:
            self._update_run()
            seen = self._look.look(self._memory, time.monotonic())
            self._remember(seen)
            action = decide.next_action(self._memory, seen, self._limits)
            if isinstance(action, decide.Leave):
                return action
            self._act(action, seen)
            self._serve(seen)
            self._look.wait(TICK_SECONDS)

    def _update_run(self) -> None:
        """Bring what is remembered of our Ray processes up to date."""
        if self._listener is not None and self._listener.heard():
            self._look.receive(signal.SIGUSR1)
        if self._ray is None or self._memory.run is None:
            return
        self._ray.tend()
        draining = self._memory.run.drain_asked_at is not None
        run = replace(
            self._memory.run,
            alive=self._ray.alive(),
            address=self._ray.address(),
            has_raylet=self._ray.has_raylet() if draining else None,
        )
        self._memory = replace(self._memory, run=run)

    def _remember(self, seen: decide.Seen) -> None:
        self._memory = decide.forgive(self._memory, seen)
        run, since = self._memory.run, self._memory.headless_since
        failures = self._memory.failures
        if run is not None and run.joined_at is None and seen.own is not None and seen.own.state == "ALIVE":
            run = replace(run, joined_at=seen.now)
            say(f"Ray node {seen.own.ray_node_id} joined {seen.now - run.started_at:.1f} s after its start")
            self._listen(run)
        if run is not None and run.joined_at is not None and seen.now - run.joined_at > decide.SETTLED_SECONDS:
            failures = 0
        if run is not None or decide.usable_head(seen) is not None:
            since = None
        elif since is None:
            since = seen.now
        self._memory = replace(self._memory, run=run, failures=failures, headless_since=since)

    def _listen(self, run: decide.RayRun) -> None:
        """From now on there can be work that a warning helps to finish."""
        needed = run.role == decide.WORKER and Listener.is_needed(self._environ, self._grant.node_count)
        if self._listener is None and needed:
            self._listener = Listener(self._private, self._environ, say)

    def _act(self, action: decide.Action, seen: decide.Seen) -> None:
        state, message = "starting", None
        if isinstance(action, decide.Wait):
            state, message = action.state, action.message
        elif isinstance(action, decide.StartHead):
            self._start_ray(None)
        elif isinstance(action, decide.StartWorker):
            self._start_ray(action.address)
        elif isinstance(action, decide.EndRay):
            state, message = "waiting", action.reason
            say(action.reason)
            self._end_ray(action.reason, failed=action.failed)
        elif isinstance(action, decide.AskDrain) and self._ray is not None and self._memory.run is not None:
            state, message = "draining", seen.drain_reason
            say(f"asking Ray to drain this node within {action.remaining_seconds:.0f} s: {message}")
            self._ray.ask_drain(action.address, action.remaining_seconds)
            self._memory = replace(self._memory, run=replace(self._memory.run, drain_asked_at=seen.now))
        self._look.interval_seconds = CALM_LOOK_SECONDS if state == "joined" else BUSY_LOOK_SECONDS
        self._report(state, message, seen)

    def _serve(self, seen: decide.Seen) -> None:
        """Payloads: only the head by the ledger takes new ones, none that is only claimed, and none that drains."""
        run = self._memory.run
        self._payloads.watch(time.monotonic(), lambda: self._ray is not None and self._ray.is_whole())
        if seen.now - self._reaped_at > REAP_SECONDS:
            self._reaped_at = seen.now
            ray = [] if self._ray is None else self._ray.child_pids()
            listener = [] if self._listener is None else self._listener.child_pids()
            processes.reap_orphans([*ray, *listener, *self._payloads.child_pids()])
        if run is None or run.role != decide.HEAD or run.joined_at is None or run.address is None:
            return
        due = seen.now - self._accepted_at >= ACCEPT_SECONDS
        if due and seen.leads is True and seen.published and seen.drain_deadline is None:
            self._accepted_at = seen.now
            self._payloads.accept(run.address)

    # -- Ray -------------------------------------------------------------------------------------

    def _start_ray(self, head_address: str | None) -> None:
        self._starts += 1
        role = decide.HEAD if head_address is None else decide.WORKER
        instance = f"{os.getpid()}.{self._starts}"
        override = self._environ.get(grant.OBJECT_STORE_VARIABLE)
        share = grant.ray_share(
            self._grant,
            read_host(),
            takes_work=role == decide.WORKER or not self._settings.head_only,
            object_store_bytes=int(override) if override and override.isdigit() else None,
        )
        head_ip = None if head_address is None else network.host_of(head_address)
        temp_dir = os.path.join(self._private, f"r{self._starts}")
        needs_port = head_address is None and raystart.starts_client_server()
        command = raystart.ray_command(
            self._python,
            head_address=head_address,
            node_ip=network.node_address(self._own_address(), self._grant.node, head_ip),
            temp_dir=temp_dir,
            share=share,
            labels=raystart.node_labels(self._grant.slurm_job_id, self._grant.node, self._settings.intent, instance),
            resources=self._settings.ray_resources or {},
            client_port=network.free_port() if needs_port else None,
            extra=self._settings.ray_start_args,
        )
        say(f"starting Ray as {role}: {' '.join(command[4:])}")
        self._ray = RayChild(
            command, self._ray_environ, self._session.directory, temp_dir, instance, head_address, self._python
        )
        if head_address is None:
            self._ray.publish_to(
                self._session.cluster(self._grant.slurm_job_id), self._grant.slurm_job_id, self._settings.token
            )
        self._memory = replace(
            self._memory,
            run=decide.RayRun(role, instance, time.monotonic(), self._ray.address(), alive=True),
        )
        self._look.hurry()

    def _own_address(self) -> str | None:
        """The address that the user chose for this node, by itself or by its interface."""
        interface = self._settings.network_interface
        chosen = self._environ.get(network.ADDRESS_VARIABLE)
        return chosen or (None if interface is None else network.interface_address(interface))

    def _end_ray(self, reason: str, *, failed: bool) -> None:
        if self._ray is None or self._memory.run is None:
            return
        if self._memory.run.role == decide.HEAD:
            self._payloads.end_all(reason, PAYLOAD_GRACE_SECONDS)
            self._withdraw()
        tails = self._ray.end() if failed else self._ray.end(read_logs=False)
        if tails:
            print(tails, flush=True)
        memory = replace(self._memory, run=None)
        if failed:
            failures = memory.failures + 1
            retry_at = time.monotonic() + decide.retry_delay_seconds(failures)
            at = self._memory.run.address
            memory = replace(memory, failures=failures, failed_address=at, retry_at=retry_at)
        self._memory = memory
        self._ray = None

    def _withdraw(self) -> None:
        """Take our own cluster file away: its address is no longer one."""
        if self._ray is not None:
            self._ray.stop_publishing()
        with contextlib.suppress(OSError):
            os.unlink(self._session.cluster(self._grant.slurm_job_id))

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, leave: decide.Leave) -> None:
        say(f"leaving: {leave.reason}")
        state = "failed" if leave.exit_status else "leaving"
        self._write_report(state, leave.reason, None)
        if leave.close_session:
            self._close_session()
        self._payloads.end_all(leave.reason, PAYLOAD_GRACE_SECONDS)
        self._end_ray(leave.reason, failed=False)
        if self._listener is not None:
            self._listener.end()
        left = processes.end_everything()
        if left:
            say(f"processes that could not be ended: {left}")
        shutil.rmtree(self._private, ignore_errors=True)
        self._write_report(state, leave.reason, None)

    def _close_session(self) -> None:
        """Nobody uses the session any more: end it, and take its waiting jobs out of the queue if Slurm lets us."""
        with contextlib.suppress(OSError):
            create_exclusively(self._session.closing, "")
        name = self._settings.slurm_job_name
        if not name:
            return
        command = ["scancel", "--quiet", "--state=PENDING", f"--user={os.getuid()}", f"--name={name}"]
        try:
            reply = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=20, check=False)
            say(f"scancel of waiting jobs: exit status {reply.returncode}")
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"scancel of waiting jobs: {error}")

    # -- reports ---------------------------------------------------------------------------------

    def _report(self, state: str, message: str | None, seen: decide.Seen) -> None:
        if (state, message) == self._reported and seen.now - self._reported_at < REPORT_SECONDS:
            return
        self._reported, self._reported_at = (state, message), seen.now
        self._write_report(state, message, seen)

    def _write_report(self, state: str, message: str | None, seen: decide.Seen | None) -> None:
        run = self._memory.run
        self._beat += 1
        content: dict[str, Any] = {
            "schema_version": 1,
            "slurm_job_id": self._grant.slurm_job_id,
            "token": self._settings.token,
            "node": self._grant.node,
            "role": None if run is None else run.role,
            "state": state,
            "draining": seen is not None and seen.drain_deadline is not None,
            "ray_node_id": None if seen is None or seen.own is None else seen.own.ray_node_id,
            "head_job_id": None if seen is None or seen.cluster is None else seen.cluster.head_job_id,
            "message": message,
            "beat": self._beat,
        }
        try:
            self._look.clock = write_document(self._report_file, content)
            self._write_failed = False
        except OSError as error:
            # A full or absent filesystem must not end the work on this node; said once.
            if not self._write_failed:
                say(f"cannot write {self._report_file}: {error}")
            self._write_failed = True


def run_node(session: Session, settings: Settings) -> int:
    """The agent of this node, in this process, with its signals."""
    agent = NodeAgent(session, settings, dict(os.environ))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda received, _frame: agent.receive(received))
    return agent.run()
