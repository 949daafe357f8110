"""What every check of a session does: find it, look once, judge, reconcile if wanted, and say it all in one result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import dagster as dg

from dagster_slurm.acting import WatchedSession, reconcile_intents
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import SessionSnapshot
from dagster_slurm.errors import DagsterSlurmError, SessionNotFound
from dagster_slurm.policy import Policy, PolicyCall, PolicyContext, PolicyProblem
from dagster_slurm.recording import Tick, tick_metadata
from dagster_slurm.run_facts import session_tag

POLICY_LIMIT_SECONDS = 30.0
_OBSERVATIONS_READ = 50


@attrs.frozen(kw_only=True)
class Options:
    """What the factories have in common; see ``session_healthy_check``."""

    resource_key: str
    reconcile: Policy | None
    severity: dg.AssetCheckSeverity


@attrs.frozen(kw_only=True)
class Judgement:
    """Whether it is well, a sentence that says what to do when not, and how many workers were asked for."""

    passed: bool
    sentence: str
    wanted: int | None = None


@attrs.frozen(kw_only=True)
class Question:
    """What a check judges on."""

    snapshot: SessionSnapshot
    session: WatchedSession
    asset_key: dg.AssetKey
    run_id: str
    partition_key: str | None
    instance: dg.DagsterInstance
    log: logging.Logger

    def ask(self, policy: Policy) -> tuple[WorkerIntent, ...] | PolicyProblem | None:
        """What a policy answers, if it does so in time."""
        key = self.asset_key.to_user_string()
        mark = self.snapshot.driver(key)
        context = PolicyContext(
            snapshot=self.snapshot,
            key=key,
            work=self.snapshot.work if mark is None else mark.work,
            run_id=self.run_id,
            asset_key=key,
            partition_key=self.partition_key,
            log=self.log,
            estimate=self.session.estimate_worker_starts,
        )
        call = PolicyCall(policy, context)
        if call.finished(POLICY_LIMIT_SECONDS):
            return call.answer()
        call.abandon()
        return PolicyProblem(sentence=f"The policy did not answer within {POLICY_LIMIT_SECONDS:g} s.")


def judge_session(
    context: dg.AssetCheckExecutionContext,
    name: str,
    options: Options,
    judge: Callable[[Question], Judgement],
) -> dg.AssetCheckResult:
    """One evaluation of a check. Only a judgement on a scheduler's answer can pass."""
    op = context.op_execution_context
    asset_key = next(key.asset_key for key in op.selected_asset_check_keys if key.name == name)
    compute = getattr(op.resources, options.resource_key)
    try:
        run_id, session = _find_session(context, compute, asset_key)
        snapshot = session.inspect()
    except SessionNotFound as error:
        sentence = (
            f"There is no session to judge. {error.message} Check the asset in the run that makes it, or while it runs."
        )
        return _result(options, Judgement(passed=False, sentence=sentence), None)
    except DagsterSlurmError as error:
        sentence = f"The session could not be looked at, so nothing is known of it. {error}"
        return _result(options, Judgement(passed=False, sentence=sentence), None)
    question = Question(
        snapshot=snapshot,
        session=session,
        asset_key=asset_key,
        run_id=run_id,
        partition_key=op.partition_key if op.has_partition_key and not op.has_partition_key_range else None,
        instance=op.instance,
        log=op.log,
    )
    judgement = judge(question) if snapshot.certain else _not_known(snapshot)
    tick = Tick(decision=judgement.sentence, snapshot=snapshot, work=snapshot.work)
    if options.reconcile is not None:
        tick = _reconcile(question, options.reconcile, tick)
    return _result(options, attrs.evolve(judgement, sentence=tick.decision), tick)


def _not_known(snapshot: SessionSnapshot) -> Judgement:
    said = (*snapshot.not_observed, "Nothing is known, so this does not pass; check again later.")
    return Judgement(passed=False, sentence=" ".join(said))


def _find_session(
    context: dg.AssetCheckExecutionContext, compute: Any, asset_key: dg.AssetKey
) -> tuple[str, WatchedSession]:
    """The session of the check's own run, else that of the newest run in progress that makes the asset."""
    op = context.op_execution_context
    tag = session_tag(getattr(compute, "session_name", None))
    # Asked anew: the tag is younger than the context where steps share a process.
    own = op.instance.get_run_by_id(op.run.run_id)
    if own is not None and tag in own.tags:
        return own.run_id, compute.attach_run_allocation_session(context)
    for run in op.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        if tag in run.tags and asset_key in (run.asset_selection or ()):
            return run.run_id, compute.attach_session(run)
    raise SessionNotFound(f"Neither this run nor a run in progress of {asset_key.to_user_string()} has asked for one.")


def _reconcile(question: Question, policy: Policy, tick: Tick) -> Tick:
    answer = question.ask(policy)
    if isinstance(answer, PolicyProblem):
        return attrs.evolve(tick, decision=f"{tick.decision} Reconciling: {answer.sentence}", problem=answer)
    if not answer:
        return tick
    done = reconcile_intents(question.session, question.snapshot, answer, tick.work)
    return attrs.evolve(done, decision=f"{tick.decision} Reconciled: {done.decision}")


def _result(options: Options, judgement: Judgement, tick: Tick | None) -> dg.AssetCheckResult:
    found = Tick(decision=judgement.sentence) if tick is None else tick
    metadata = tick_metadata(found)
    if judgement.wanted is not None:
        metadata["slurm/wanted"] = dg.MetadataValue.int(judgement.wanted)
    return dg.AssetCheckResult(
        passed=judgement.passed, severity=options.severity, description=judgement.sentence, metadata=metadata
    )


def describe_held_back(instance: dg.DagsterInstance, asset_key: dg.AssetKey, limit_seconds: float) -> str | None:
    """What has been held back in every recorded tick for longer than the limit; None when nothing was."""
    records = instance.fetch_observations(asset_key, limit=_OBSERVATIONS_READ).records
    newest: float | None = None
    reason = ""
    for record in records:
        observation = record.asset_observation
        if observation is None or "slurm/decision" not in observation.metadata:
            continue
        said = observation.metadata.get("slurm/held_back")
        if said is None:
            return None
        if newest is None:
            newest, reason = record.timestamp, str(said.value)
        # Times of one storage are compared with each other only.
        if newest - record.timestamp > limit_seconds:
            minutes = round((newest - record.timestamp) / 60)
            return f"Held back for {minutes} min: {reason} Change what it names, or what the policy asks for."
    return None
