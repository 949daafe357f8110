"""One session: all allocations of one Dagster run, and the three hooks of its policy."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate, StartProbe
from dagster_slurm.allocations.intent import WorkerIntent, check_intent_key
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.lifecycle import is_over, live_jobs, open_tokens, plan_addition, plan_end
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import HeldBackReasons, Plan, Site, Submit
from dagster_slurm.allocations.result import EndResult, ReconcileResult
from dagster_slurm.allocations.roles import AssignmentResult, plan_assignment
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot, build_snapshot
from dagster_slurm.allocations.workers import (
    DEFAULT_LIVE_PER_SESSION,
    DEFAULT_SUBMISSIONS_PER_CALL,
    Seen,
    WorkerRequest,
    effective_shape,
    plan_workers,
)
from dagster_slurm.errors import ConfigurationError, SessionNotFound, SubmissionRefused
from dagster_slurm.remote.payload_scripts import (
    Mark,
    PayloadPoll,
    cancel_script,
    poll_script,
    read_poll,
    read_start,
    start_script,
)
from dagster_slurm.remote.probes import log_script, read_log, read_starts, starts_script
from dagster_slurm.remote.shell import RemoteShell
from dagster_slurm.remote.submission import sbatch_options
from dagster_slurm.remote.transfer import pack
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens
from dagster_slurm.session.estimators import SbatchTestOnlyEstimator, StartEstimator

#: Stands where a submission's token would; estimates reserve nothing, so they have none.
_NO_TOKEN = "0" * 32


class AllocationSession:
    """All allocations of one run.

    Every method asks the cluster anew; nothing runs in the background. Get one from
    ``SlurmComputeResource.get_run_allocation_session``.

    Args:
        shell: The login node.
        site: Where the session lives.
        settings: Its place and how its jobs start.
        submissions_per_call: Most submissions of one call.
        live_per_session: Most live allocations.
    """

    def __init__(
        self,
        shell: RemoteShell,
        site: Site,
        settings: SessionSettings,
        *,
        submissions_per_call: int = DEFAULT_SUBMISSIONS_PER_CALL,
        live_per_session: int = DEFAULT_LIVE_PER_SESSION,
    ) -> None:
        self._shell = shell
        self._site = site
        self._settings = settings
        self._submissions_per_call = submissions_per_call
        self._live_per_session = live_per_session
        self._estimator = SbatchTestOnlyEstimator()
        self._ledger: Ledger | None = None

    @property
    def session_id(self) -> str:
        """Name of the session."""
        return self._settings.session_id

    @property
    def session_dir(self) -> str:
        """Its directory on the cluster."""
        return self._settings.session_dir

    @property
    def job_name(self) -> str:
        """Slurm job name of all its allocations."""
        return self._settings.job_name

    @property
    def address(self) -> str:
        """The login node, for messages."""
        return self._shell.address

    def inspect(self) -> SessionSnapshot:
        """Observe every allocation: one remote command, one ``squeue``; waits for no allocation.

        A second command asks accounting when a recorded job left the queue and its end is not recorded yet.

        Raises:
            SessionNotFound: the session has no records.
            RemoteError: the login node could not be asked. A silent scheduler is no error: ``certain`` is False.
        """
        observation = self._site.observe()
        return build_snapshot(self._known(observation), observation)

    def keep_alive(self) -> None:
        """Tell the allocations that somebody still cares, as every other method does too."""
        self._site.observe()

    def logs(self, slurm_job_id: str) -> str:
        """Last lines of a job's log; empty when it has none yet.

        Raises:
            SessionNotFound: no allocation of the session has that id.
        """
        record = self._known(self._site.observe()).record(slurm_job_id)
        if record is None:
            raise SessionNotFound(f"The session {self.session_id} has no record of a job {slurm_job_id}.")
        return read_log(self._shell.run(log_script(self._settings, record.token)), self.address)

    def _known(self, observation: Observation) -> Ledger:
        if observation.ledger is None:
            raise SessionNotFound(
                f"The session {self.session_id} has no records in {self.session_dir} on {self.address}.",
                remedy="get it with get_run_allocation_session, which creates it.",
            )
        self._ledger = observation.ledger
        return observation.ledger

    @property
    def known_jobs(self) -> tuple[str, ...]:
        """Job ids that the records named when this process last saw them and that had not ended; asks nobody."""
        records = () if self._ledger is None else self._ledger.records()
        return tuple(record.slurm_job_id for record in records if record.final_state is None)

    def estimate_worker_starts(
        self, candidates: Sequence[SlurmWorkerAllocationConfig], estimator: StartEstimator | None = None
    ) -> Sequence[StartEstimate]:
        """When could each candidate start? One remote command; answers are used again for a minute.

        Raises:
            EstimateBudgetExceeded: more than eight distinct candidates without a recent answer. Nothing was sent.
            ConfigurationError: a candidate that cannot be rendered.
            RemoteError: the login node could not be asked.
        """
        return (estimator or self._estimator).estimate(self, candidates)

    def worker_shape(self, config: SlurmWorkerAllocationConfig | None = None) -> EffectiveShape:
        """The shape that a submission of ``config`` has in this session, inherited settings included."""
        ledger = self._ledger if self._ledger is not None else self._known(self._site.observe())
        return effective_shape(ledger, config)

    def worker_sbatch_options(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> tuple[tuple[str, ...], ...]:
        """The ``sbatch`` options that each candidate would be submitted with; the token stands as zeros."""
        return tuple(sbatch_options(self._settings, self.worker_shape(c), _NO_TOKEN) for c in candidates)

    def probe_starts(self, options: Sequence[tuple[str, ...]]) -> tuple[StartProbe, ...]:
        """Ask ``sbatch --test-only`` about option lists, in one remote command; a dead controller costs two seconds."""
        return read_starts(
            self._shell.run(starts_script(options, self._settings.cluster), timeout_seconds=120),
            len(options),
            self.address,
        )

    def reconcile_workers(
        self,
        intent: WorkerIntent | Sequence[WorkerIntent],
        *,
        observed: SessionSnapshot | None = None,
        max_observation_age: float = 300,
        max_submissions: int | None = None,
        release: Iterable[str] = (),
    ) -> ReconcileResult:
        """Submit or release allocations until each intent's count holds. Safe across processes and lost connections.

        Args:
            intent: One intent, or several: one query and one commit serve all.
            observed: The snapshot that the counts were decided on; None skips the checks of its age and head.
            max_observation_age: Seconds after which ``observed`` is too old to submit on.
            max_submissions: Most submissions of this call; None means the session's limits only.
            release: Job ids to release whatever the order of scale-in; ignored unless live and of the intents.

        Raises:
            RemoteError: the login node could not be asked.
            LockTimeout: the session lock stayed taken; nothing was submitted.
            ConfigurationError: a request that makes no sense.
        """
        if isinstance(release, str):
            raise ConfigurationError(f"release takes several job ids, such as [{release!r}]", field="release")
        request = WorkerRequest(
            intents=(intent,) if isinstance(intent, WorkerIntent) else tuple(intent),
            seen=None if observed is None else _seen(observed),
            max_observation_age=max_observation_age,
            max_submissions=max_submissions,
            release=frozenset(str(job_id) for job_id in release),
            submissions_per_call=self._submissions_per_call,
            live_per_session=self._live_per_session,
        )
        tokens: set[str] = set()
        expired: set[str] = set()

        def decide(observation: Observation) -> Plan:
            asked = attrs.evolve(request, own_tokens=frozenset(tokens), own_expired=frozenset(expired))
            plan = plan_workers(self._known(observation), observation, asked, fresh_tokens())
            tokens.update(effect.token for effect in plan.effects if isinstance(effect, Submit))
            expired.update(plan.expired)
            return plan

        outcome = carry_out(self._site, decide)
        self._ledger = outcome.ledger
        return ReconcileResult(
            submitted=outcome.submitted,
            released=outcome.released,
            expired=outcome.expired,
            recovered=outcome.recovered,
            live=tuple(dict.fromkeys((*outcome.plan.live, *_submitted_for(outcome, request)))),
            held_back=HeldBackReasons(outcome.held_back),
        )

    def assign_worker_intent(self, slurm_job_id: str, key: str | None) -> AssignmentResult:
        """Move a live worker allocation into an intent, or out of every intent with None.

        One that leaves every intent is never released by a count. One that joins an intent has no ``submitted_at``, so
        ``pending_timeout`` never cancels it. One that is being released keeps its intent until it ends.

        Raises:
            ConfigurationError: a key that cannot name an intent.
            RemoteError: the login node could not be asked.
        """
        if key is not None:
            check_intent_key(key)
        outcome = carry_out(self._site, lambda o: plan_assignment(self._known(o), o, slurm_job_id, key))
        self._ledger = outcome.ledger
        record = outcome.ledger.record(slurm_job_id)
        return AssignmentResult(
            slurm_job_id=slurm_job_id,
            intent=None if record is None else record.intent,
            held_back=next(iter(outcome.held_back), None),
        )

    def add_worker_allocation(self, config: SlurmWorkerAllocationConfig | None = None) -> AllocationSnapshot:
        """Submit one worker allocation that belongs to no intent: no count ever releases it.

        Returns:
            The allocation as submitted. Its job id is None when the outcome is not known yet; a later call finds it.

        Raises:
            SubmissionRefused: the scheduler refused it, did not answer, or the session is ending.
            RemoteError: the login node could not be asked.
        """

        def decide(observation: Observation) -> Plan:
            ledger = self._known(observation)
            tokens.append(secrets.token_hex(16))
            return plan_addition(ledger, observation, effective_shape(ledger, config), tokens)

        tokens: list[str] = []
        outcome = carry_out(self._site, decide)
        self._ledger = outcome.ledger
        for job_id in outcome.submitted:
            return AllocationSnapshot(slurm_job_id=job_id, role="worker")
        if not outcome.ledger.worker_submissions.keys().isdisjoint(tokens):
            return AllocationSnapshot(slurm_job_id=None, role="worker", message=str(HeldBackReasons(outcome.held_back)))
        raise SubmissionRefused("No worker allocation was added.", cluster_said=str(HeldBackReasons(outcome.held_back)))

    def end(self, *, timeout_seconds: float = 30) -> EndResult:
        """End the session: it starts no new work, and every job of its name and our user is cancelled.

        Returns:
            Whether a listing showed that nothing is left. When not, call it again; nothing was lost.

        Raises:
            RemoteError: the login node could not be asked.
        """
        until = time.monotonic() + timeout_seconds
        while True:
            outcome = carry_out(self._site, lambda o: plan_end(o, self.session_id), even_if_closing=True)
            observation = outcome.observation
            if observation.closing and is_over(observation):
                return EndResult(complete=True)
            if time.monotonic() >= until:
                return EndResult(complete=False, live=live_jobs(observation), unresolved=len(open_tokens(observation)))
            time.sleep(0.5)

    def start_payload(
        self,
        payload: Path,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        payload_id: str | None = None,
    ) -> str:
        """Bring a file or directory to the cluster and have the head run it.

        Args:
            payload: A Python file, or a directory.
            argv: Command and arguments, run beside the directory ``files`` that holds what was brought; ``{python}``
                stands for the cluster's Python. Empty runs the file itself.
            env: Environment variables added for it.
            payload_id: A fresh id that begins with the login node's clock (``"<epoch seconds>-<anything>"``): then the
                payload's directory is known beforehand, and a call whose answer was lost can be made again. None: made
                here.

        Returns:
            The payload's id. It waits until the head runs.

        Raises:
            ConfigurationError: the payload does not exist or is too large; nothing was sent.
            RemoteError, SessionError: it was not brought.
        """
        words = list(argv) or ["{python}", "-u", f"files/{payload.name}"]
        script = start_script(self.session_dir, payload_id, pack(payload), words, env or {})
        return read_start(self._shell.run(script, timeout_seconds=120), self.session_dir, self.address)

    def poll_payload(
        self, payload_id: str, *, messages_offset: int = 0, log_offset: int = 0, mark: Mark | None = None
    ) -> PayloadPoll:
        """Look at a payload: its state, messages and output from the byte offsets on; ``mark`` says who follows it."""
        script = poll_script(self.session_dir, payload_id, messages_offset, log_offset, mark)
        return read_poll(self._shell.run(script), self.session_dir, self.address)

    def cancel_payload(self, payload_id: str) -> None:
        """Ask for the payload's end: its processes are terminated, and killed ten seconds later."""
        self._shell.run(cancel_script(self.session_dir, payload_id))

    def close(self) -> None:
        """Close the connection. Ends nothing on the cluster."""
        self._shell.close()


def _seen(snapshot: SessionSnapshot) -> Seen:
    return Seen(
        observed_at=snapshot.observed_at,
        head_job_id=snapshot.head.slurm_job_id,
        slurm_job_ids=frozenset(a.slurm_job_id for a in snapshot.allocations if a.slurm_job_id is not None),
    )


def _submitted_for(outcome: Outcome, request: WorkerRequest) -> tuple[str, ...]:
    keys = {intent.key for intent in request.intents}
    records = (outcome.ledger.record(job_id) for job_id in outcome.submitted)
    return tuple(record.slurm_job_id for record in records if record is not None and record.intent in keys)
