"""One look at the world: signals, the session directory, the host. Gives facts, decides nothing."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from . import decide
from .files import Document, Session, exists, modified_at, read_document
from .grant import Grant, Host
from .raystart import installed_ray_version
from .records import Cluster, Leader, Settings, drain_seconds, is_claimed, leader, read_cluster, stands_by


class Look:
    """Remembers only what makes the next look cheap, and what must not be forgotten (signals, deadlines).

    Attributes:
        clock: The shared filesystem's clock at our last report; None before the first one.
        interval_seconds: How often the shared filesystem is looked at.
    """

    def __init__(self, session: Session, settings: Settings, grant: Grant) -> None:
        self._session = session
        self._settings = settings
        self._grant = grant
        self._ray_version = installed_ray_version()
        self.clock: float | None = None
        self.interval_seconds = 1.0
        self._terminated = False
        self._told_to_end = False
        self._warned = False
        self._passed_on: set[int] = set()
        self._drain_deadline: float | None = None
        self._drain_reason: str | None = None
        self._session_missing_since: float | None = None
        self._first_clock: float | None = None
        self._looked_at = float("-inf")
        self._leads: bool | None = None
        self._published = False
        self._with_head = False
        self._stands_by = False
        self._cluster: Cluster | None = None
        self._closing = False
        self._lease_age: float | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)

    def receive(self, number: int) -> None:
        """Note a signal and wake ``wait``. Safe in a signal handler.

        Of an allocation with several nodes this agent is a task. Slurm sends tasks SIGTERM also at the beginning of a
        preemption's grace time, when the batch step hears nothing: alone it is a warning. The end comes through the
        batch step.
        """
        if number == signal.SIGUSR1 or (number == signal.SIGTERM and self._grant.node_count > 1):
            self._warned = True
        else:
            self._terminated = True
        self._looked_at = float("-inf")
        try:
            os.write(self._wake_writer, b"!")
        except BlockingIOError:
            return

    def wait(self, seconds: float) -> None:
        """Until a signal arrives, at most so long."""
        ready, _, _ = select.select([self._wake_reader], [], [], seconds)
        if ready:
            os.read(self._wake_reader, 4096)

    def hurry(self) -> None:
        """Look at the shared filesystem again at the next look."""
        self._looked_at = float("-inf")

    def look(self, memory: decide.Memory, now: float) -> decide.Seen:
        if now - self._looked_at >= self.interval_seconds:
            self._looked_at = now
            self._look_at_session(now)
        if self._warned:
            window = decide.window_after_signal(self._settings.drain_window_seconds)
            self._drain(now + window, "Slurm warns that it ends soon (walltime or preemption)")
            self._warned = False
        if self._terminated and not self._told_to_end:
            self._told_to_end = True
            self._drain(now + decide.TERM_DRAIN_SECONDS, "Slurm ends it (preempted or cancelled)")
        run = memory.run
        own = None
        if run is not None and self._cluster is not None:
            own = self._cluster.node(self._grant.slurm_job_id, self._grant.node, run.instance)
        missing = self._session_missing_since
        return decide.Seen(
            now=now,
            leads=self._leads,
            published=self._published,
            with_head=self._with_head,
            stands_by=self._stands_by,
            cluster=self._cluster,
            own=own,
            terminated=self._terminated,
            closing=self._closing,
            drain_deadline=self._drain_deadline,
            drain_reason=self._drain_reason,
            lease_age_seconds=self._lease_age,
            session_gone_seconds=0.0 if missing is None else now - missing,
            ray_version=self._ray_version,
        )

    def _look_at_session(self, now: float) -> None:
        if os.path.isdir(self._session.directory):
            self._session_missing_since = None
        elif self._session_missing_since is None:
            self._session_missing_since = now
        self._closing = self._closing or exists(self._session.closing) is True
        self._look_for_orders(now)
        document = read_document(self._session.ledger)
        if document is not None:
            job_id, token = self._grant.slurm_job_id, self._settings.token
            lead, claimed = leader(document.content), is_claimed(document.content, job_id)
            leads = lead is not None and lead.is_allocation(job_id, token)
            self._published, self._with_head = leads and self._grant.node_index == 0, leads or claimed
            self._stands_by = stands_by(document.content, job_id, token)
            if claimed and self._grant.node_index == 0:
                # It brings up a head of its own, whoever else still leads.
                self._leads, lead = True, Leader(job_id, token)
            else:
                self._leads = None if lead is None else self._published
            self._cluster = self._read_cluster(lead)
        self._lease_age = self._age_of_lease()

    def _look_for_orders(self, now: float) -> None:
        """Drain file, and the signals that the batch step passes on to the nodes of a larger allocation."""
        token = self._settings.token
        drain = self._session.submission(token, "drain")
        if exists(drain):
            found = read_document(drain)
            window = drain_seconds(None if found is None else found.content, self._settings.drain_window_seconds)
            self._drain(now + window, "released")
        if self._grant.node_count > 1:
            for number in (signal.SIGUSR1, signal.SIGTERM):
                if number not in self._passed_on and exists(signal_file(self._session, token, number)):
                    self._passed_on.add(number)
                    self._warned = self._warned or number == signal.SIGUSR1
                    self._terminated = self._terminated or number == signal.SIGTERM

    def _drain(self, deadline: float, reason: str) -> None:
        """Drain until then, or until the deadline that is set already if that is earlier."""
        self._drain_deadline = decide.earlier(self._drain_deadline, deadline)
        if self._drain_deadline == deadline:
            self._drain_reason = reason

    def _read_cluster(self, lead: Leader | None) -> Cluster | None:
        if lead is None:
            return None
        paths: Iterable[str]
        if lead.slurm_job_id is not None:
            paths = [self._session.cluster(lead.slurm_job_id)]
        else:
            paths = self._all_cluster_files()
        for path in paths:
            document = read_document(path)
            cluster = None if document is None else read_cluster(document.content, self._age(document))
            if cluster is not None and (lead.slurm_job_id is not None or cluster.token == lead.token):
                return cluster
        return None

    def _all_cluster_files(self) -> list[str]:
        folder = self._session.path("cluster")
        try:
            return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".json")]
        except OSError:
            return []

    def _age(self, document: Document) -> float:
        """Seconds since it was written; 0 while our own clock is not known (unknown is not stale)."""
        return 0.0 if self.clock is None else max(0.0, self.clock - document.modified_at)

    def _age_of_lease(self) -> float | None:
        """Age of the lease; one that is missing counts from our first report."""
        if self.clock is None:
            return None
        if self._first_clock is None:
            self._first_clock = self.clock
        touched = modified_at(self._session.lease)
        return max(0.0, self.clock - (self._first_clock if touched is None else touched))


def signal_file(session: Session, token: str, number: int) -> str:
    """Where the batch step of an allocation with several nodes notes a signal for all of them."""
    return session.submission(token, "signal." + signal.Signals(number).name[3:])


def read_host() -> Host:
    """CPUs, memory and shared memory of this machine."""
    shared = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    return Host(
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        shared_memory_bytes=0 if shared is None else shared.f_frsize * shared.f_blocks,
        shared_memory_free_bytes=0 if shared is None else shared.f_frsize * shared.f_bavail,
    )
