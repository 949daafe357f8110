"""What a node should do next. Pure: every time is this agent's own monotonic clock, every fact is passed in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .records import Cluster, RayNode

HEAD = "head"
WORKER = "worker"

#: A head that has published nothing for so long cannot be joined: its file may be left over.
FRESH_SECONDS = 30.0

#: Ray's start or join took at most 16 s on a busy two-core machine.
START_TIMEOUT_SECONDS = 180.0

#: Between two requests to drain a node, while the cluster does not show it draining.
DRAIN_RETRY_SECONDS = 3.0

#: Between asking Slurm for the warning signal and the end, this much is for ending Ray itself.
ENDING_SECONDS = 10.0

#: What work gets after SIGTERM. Slurm kills what is left ``KillWait`` later, 30 s unless the site says otherwise.
TERM_DRAIN_SECONDS = 20.0

#: Ray may fail this often in a row before the agent gives up. Delays: 1, 2, 4, 8, 16, 30 s.
START_FAILURES_ALLOWED = 6
LONGEST_DELAY_SECONDS = 30.0

#: Ray that ran so long counts as having worked; earlier failures are forgotten.
SETTLED_SECONDS = 120.0

#: A session directory that stays unreadable for so long is gone.
SESSION_GONE_SECONDS = 120.0


@dataclass(frozen=True)
class Limits:
    """Settings of this allocation that decisions need."""

    rejoin_timeout_seconds: float
    orphan_timeout_seconds: float | None


@dataclass(frozen=True)
class RayRun:
    """The Ray processes this agent runs now."""

    role: str
    instance: str
    started_at: float
    address: str | None
    alive: bool
    has_raylet: bool | None = None
    joined_at: float | None = None
    drain_asked_at: float | None = None


@dataclass(frozen=True)
class Memory:
    """What the agent remembers between two looks. ``headless_since`` is None while a usable head is in sight.

    ``failed_address`` is the head at which Ray failed last; None when nothing failed, or it failed as the head.
    """

    started_at: float
    run: RayRun | None = None
    failures: int = 0
    failed_address: str | None = None
    retry_at: float = 0.0
    headless_since: float | None = None


@dataclass(frozen=True)
class Seen:
    """One look at the world.

    Attributes:
        leads: Whether this node has to be the head; None when the ledger does not tell (role stays as it is).
        published: Whether it is the head for everybody, and not only claimed to become it.
        with_head: Whether its allocation leads or is claimed to, be it by another of its nodes.
        stands_by: Whether its allocation is the successor, which waits until it is claimed.
        cluster: What the ledger's head has published; None when nothing.
        own: This run's entry in it; None when it is not there.
        terminated: Whether SIGTERM has come for the whole allocation.
        drain_deadline: When this node has to be gone; None without a drain.
        drain_reason: Why, for people; None without a drain.
        lease_age_seconds: By the filesystem's clock; None when it cannot be told.
        session_gone_seconds: How long the session directory has been missing.
    """

    now: float
    leads: bool | None
    published: bool = True
    with_head: bool = False
    stands_by: bool = False
    cluster: Cluster | None = None
    own: RayNode | None = None
    terminated: bool = False
    closing: bool = False
    drain_deadline: float | None = None
    drain_reason: str | None = None
    lease_age_seconds: float | None = None
    session_gone_seconds: float = 0.0
    ray_version: str | None = None


@dataclass(frozen=True)
class Wait:
    """Nothing to do. ``state`` and ``message`` are what the node reports."""

    state: str
    message: str | None = None


@dataclass(frozen=True)
class StartHead:
    state: str = field(default="starting", init=False)


@dataclass(frozen=True)
class StartWorker:
    address: str
    state: str = field(default="starting", init=False)


@dataclass(frozen=True)
class EndRay:
    """End the Ray processes and go on. ``failed`` counts towards giving up."""

    reason: str
    failed: bool


@dataclass(frozen=True)
class AskDrain:
    address: str
    remaining_seconds: float


@dataclass(frozen=True)
class Leave:
    """End everything and exit. ``close_session`` first marks the whole session as closing."""

    exit_status: int
    reason: str
    close_session: bool = False


Action = Wait | StartHead | StartWorker | EndRay | AskDrain | Leave


def next_action(memory: Memory, seen: Seen, limits: Limits) -> Action:
    """The one thing to do now."""
    leave = reason_to_leave(memory, seen, limits)
    if leave is not None:
        return leave
    run = memory.run
    if run is not None and not run.alive:
        if seen.drain_deadline is not None and run.role == WORKER:
            return drained(seen, "Ray has ended on this node")
        return EndRay("Ray ended on this node by itself; its last log lines are in the job's log", failed=True)
    role = wanted_role(memory, seen)
    if seen.drain_deadline is not None and (run is None or run.role == WORKER):
        return drain_step(run, seen, seen.drain_deadline)
    if run is not None and role != run.role:
        return EndRay(f"this node is now to be the {role}", failed=False)
    return head_step(memory, seen) if role == HEAD else worker_step(memory, seen, limits)


def reason_to_leave(memory: Memory, seen: Seen, limits: Limits) -> Leave | None:
    """What ends the agent at once, whatever else is going on."""
    if seen.terminated and not has_work_to_finish(memory, seen):
        return Leave(0, "told to end (SIGTERM)")
    if seen.closing:
        return Leave(0, "the session is closing")
    if seen.session_gone_seconds > SESSION_GONE_SECONDS:
        return Leave(0, "the session directory is gone")
    if seen.drain_deadline is not None and seen.now >= seen.drain_deadline:
        return drained(seen, "the deadline has passed")
    without_head = memory.run is None or not memory.run.alive
    watches_lease = seen.leads is True or without_head
    if watches_lease and lease_has_run_out(seen.lease_age_seconds, limits.orphan_timeout_seconds):
        return Leave(0, f"nobody has used the session for {seen.lease_age_seconds:.0f} s", close_session=True)
    return None


def has_work_to_finish(memory: Memory, seen: Seen) -> bool:
    """Whether SIGTERM makes this node drain instead of leaving at once.

    Only a Ray worker of another allocation's head can have work that goes on: what the head leads ends with it. Nothing
    is worth waiting for in a session that ends.
    """
    run = memory.run
    is_worker = run is not None and run.alive and run.role == WORKER and run.joined_at is not None
    return is_worker and not seen.with_head and not seen.closing


def lease_has_run_out(age_seconds: float | None, timeout_seconds: float | None) -> bool:
    """Whether nobody uses the session any more. What is not known is no reason to end it."""
    return age_seconds is not None and timeout_seconds is not None and age_seconds > timeout_seconds


def wanted_role(memory: Memory, seen: Seen) -> str:
    """Head or worker by the ledger; an unreadable ledger changes nothing."""
    if seen.leads is not None:
        return HEAD if seen.leads else WORKER
    return memory.run.role if memory.run is not None else WORKER


def drain_step(run: RayRun | None, seen: Seen, deadline: float) -> Action:
    """Leave as soon as nothing runs here; until then make sure that the cluster shows this node draining.

    A draining raylet ends by itself once it is idle. Ray does not enforce the deadline: ``reason_to_leave`` does.
    """
    if run is None:
        return drained(seen, "Ray was not running on this node")
    if run.has_raylet is False and run.drain_asked_at is not None:
        # Slurm's SIGTERM to the batch step reaches most programs below it, Ray's too.
        return drained(seen, "Ray has ended on this node" if seen.terminated else "all work on this node has ended")
    if seen.own is not None and seen.own.state == "DEAD":
        return drained(seen, "the cluster has let this node go")
    if seen.own is not None and seen.own.state == "DRAINING":
        return Wait("draining", seen.drain_reason)
    if run.address is None:
        return drained(seen, "Ray had not started on this node")
    if run.drain_asked_at is not None and seen.now - run.drain_asked_at < DRAIN_RETRY_SECONDS:
        return Wait("draining", f"{seen.drain_reason}; the cluster does not show it yet")
    return AskDrain(run.address, deadline - seen.now)


def drained(seen: Seen, how: str) -> Leave:
    """The end of a drain, in words: why it drained and how that ended."""
    why = f" ({seen.drain_reason})" if seen.drain_reason else ""
    return Leave(0, f"drained{why}: {how}")


def head_step(memory: Memory, seen: Seen) -> Action:
    run = memory.run
    if run is None:
        return start_or_wait(memory, seen, StartHead())
    if run.address is None and seen.now - run.started_at > START_TIMEOUT_SECONDS:
        return EndRay(f"Ray's head did not come up within {START_TIMEOUT_SECONDS:.0f} s", failed=True)
    if seen.drain_deadline is not None:
        return Wait("draining", "the head works on until its deadline")
    return Wait("starting" if run.joined_at is None else "joined")


def worker_step(memory: Memory, seen: Seen, limits: Limits) -> Action:
    run, head = memory.run, usable_head(seen)
    if seen.stands_by:
        # It takes no work: becoming the head would end it.
        return Wait("waiting", "stands by as the next head") if run is None else EndRay("it stands by", failed=False)
    if run is None:
        if head is None:
            since = memory.started_at if memory.headless_since is None else memory.headless_since
            if seen.now - since > limits.rejoin_timeout_seconds:
                return Leave(0, f"no head for {limits.rejoin_timeout_seconds:.0f} s")
            return Wait("waiting", "no head has published its address yet")
        if None not in (head.ray_version, seen.ray_version) and head.ray_version != seen.ray_version:
            return Leave(1, f"this node's Python has Ray {seen.ray_version}, the head has Ray {head.ray_version}")
        return start_or_wait(memory, seen, StartWorker(head.address))
    if head is not None and head.address != run.address:
        return EndRay(f"the head is now at {head.address}", failed=False)
    if run.joined_at is not None:
        if seen.own is not None and seen.own.state == "DEAD":
            return EndRay("the cluster has declared this node dead", failed=True)
        return Wait("joined")
    if head is not None and seen.now - run.started_at > START_TIMEOUT_SECONDS:
        return EndRay(f"this node did not join within {START_TIMEOUT_SECONDS:.0f} s", failed=True)
    return Wait("starting")


def usable_head(seen: Seen) -> Cluster | None:
    """The head's publication while it is fresh enough to be joined."""
    return seen.cluster if seen.cluster is not None and seen.cluster.age_seconds <= FRESH_SECONDS else None


def start_or_wait(memory: Memory, seen: Seen, start: StartHead | StartWorker) -> Action:
    if memory.failures > START_FAILURES_ALLOWED:
        return Leave(1, f"Ray failed {memory.failures} times in a row on this node; see the job's log")
    if seen.now < memory.retry_at:
        return Wait("starting", f"Ray failed {memory.failures} times in a row; trying again")
    return start


def forgive(memory: Memory, seen: Seen) -> Memory:
    """Failures at a head that has been replaced say nothing about the next one."""
    head = usable_head(seen)
    moved = head is not None and memory.failed_address not in (None, head.address)
    return replace(memory, failures=0, failed_address=None, retry_at=0.0) if moved else memory


def retry_delay_seconds(failures: int) -> float:
    """Growing delay after that many failures in a row."""
    return min(LONGEST_DELAY_SECONDS, 2.0 ** max(0, failures - 1))


def window_after_signal(drain_window_seconds: float) -> float:
    """Seconds of work left when Slurm's warning signal arrives that many seconds before the walltime's end."""
    return max(0.0, drain_window_seconds - min(ENDING_SECONDS, drain_window_seconds / 2))


def earlier(deadline: float | None, candidate: float) -> float:
    """A drain's deadline never moves to a later time."""
    return candidate if deadline is None else min(deadline, candidate)
