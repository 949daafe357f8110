"""One look at one session from outside of its steps: ask the policies that no step asks, and follow up what began."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import attrs

from dagster_slurm.acting import WatchedSession, follow_up, reconcile_intents
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import SessionSnapshot
from dagster_slurm.errors import DagsterSlurmError
from dagster_slurm.head_keeper import head_sentence
from dagster_slurm.policy import Policy, PolicyCall, PolicyContext, PolicyProblem, active
from dagster_slurm.recording import Tick
from dagster_slurm.run_facts import StepAsset, StepState
from dagster_slurm.ticks import END_DRAIN_SECONDS


@attrs.frozen(kw_only=True)
class Seen:
    """A tick and whom it is about.

    Attributes:
        tick: The tick.
        asset: The asset; None when it is about the session as a whole.
    """

    tick: Tick
    asset: StepAsset | None


@attrs.frozen(kw_only=True)
class Asked:
    """An asset and the policy that is asked for it."""

    asset: StepAsset
    policy: Policy


@attrs.frozen(kw_only=True)
class Watch:
    """Who looks.

    Attributes:
        run_id: The run.
        assets: Its assets, one for each step.
        log: Where policies write to.
        policy_timeout_seconds: How long all its policies together may take.
    """

    run_id: str
    assets: Sequence[StepAsset]
    log: logging.Logger
    policy_timeout_seconds: float


def watch_session(session: WatchedSession, watch: Watch) -> tuple[Seen, ...]:
    """Look once, and do what nobody else does.

    A policy is asked while its asset's step runs, unless the step marked within its last two intervals that it asks
    itself. Workers that a step left behind when it ended are released. Deadlines are always followed up; so is a head
    that needs a successor.

    Raises:
        DagsterSlurmError: the session could not be looked at.
    """
    snapshot = session.inspect()
    running = [asset for asset in watch.assets if asset.state is StepState.RUNNING]
    driven = [asset for asset in running if _is_driven(asset, snapshot)]
    asked = [
        Asked(asset=asset, policy=asset.policy) for asset in running if asset.policy is not None and asset not in driven
    ]
    followed = _follow_head(session, snapshot)
    seen = [*_release_left_behind(session, snapshot, watch), *_ask_all(session, snapshot, watch, asked, driven)]
    if seen:
        return (attrs.evolve(seen[0], tick=_with_head(seen[0].tick, followed)), *seen[1:])
    names = ", ".join(asset.intent_key for asset in driven)
    who = f"The step of {names} asks its policy itself" if driven else "No policy to ask"
    observed = Tick(decision=f"{who}; only observed.", snapshot=snapshot, work=snapshot.work)
    tick = follow_up(session, _with_head(observed, followed))
    # A step that drives records its ticks on its asset; the same numbers twice would blur its charts.
    lone = running[0] if len(running) == 1 and not driven else None
    return (Seen(tick=tick, asset=lone),)


def _follow_head(session: WatchedSession, snapshot: SessionSnapshot) -> str:
    """One step of an election, where an allocation could lead. A new head job is for a step that has work for it."""
    heirs = [a for a in (*snapshot.workers(), snapshot.successor) if a is not None and a.drain_deadline is None]
    if snapshot.head_needs is None or not any(heir.state == "RUNNING" for heir in heirs):
        return ""
    try:
        return head_sentence(session.ensure_head())
    except DagsterSlurmError as error:
        return f"The head could not be seen to: {error.message}"


def _with_head(tick: Tick, followed: str) -> Tick:
    return attrs.evolve(tick, decision=f"{tick.decision} {followed}".rstrip(), about_head=followed)


def _is_driven(asset: StepAsset, snapshot: SessionSnapshot) -> bool:
    mark = snapshot.driver(asset.intent_key)
    return mark is not None and mark.fresh


def _release_left_behind(session: WatchedSession, snapshot: SessionSnapshot, watch: Watch) -> list[Seen]:
    seen = []
    for asset in watch.assets:
        left = active(snapshot, asset.intent_key) if asset.state is StepState.ENDED and asset.policy else ()
        if left:
            intent = WorkerIntent(key=asset.intent_key, count=0, drain_timeout=END_DRAIN_SECONDS)
            tick = reconcile_intents(session, snapshot, (intent,))
            sentence = tick.decision.partition(". ")[2]
            told = attrs.evolve(tick, decision=f"The step of {asset.intent_key} has ended and left workers. {sentence}")
            seen.append(Seen(tick=told, asset=asset))
    return seen


def _ask_all(
    session: WatchedSession,
    snapshot: SessionSnapshot,
    watch: Watch,
    asked: Sequence[Asked],
    driven: Sequence[StepAsset],
) -> list[Seen]:
    calls = [(one, PolicyCall(one.policy, _context(session, snapshot, watch, one.asset))) for one in asked]
    until = time.monotonic() + watch.policy_timeout_seconds
    answers = [(one.asset, call, _answer(call, until, watch.policy_timeout_seconds)) for one, call in calls]
    taken = [asset.intent_key for asset in driven]
    taken += [intent.key for _, _, answer in answers if isinstance(answer, tuple) for intent in answer]
    seen = []
    for asset, call, answer in answers:
        tick = _act(session, call, _without_conflict(answer, taken))
        seen.append(Seen(tick=tick, asset=asset))
    return seen


def _context(session: WatchedSession, snapshot: SessionSnapshot, watch: Watch, asset: StepAsset) -> PolicyContext:
    mark = snapshot.driver(asset.intent_key)
    return PolicyContext(
        snapshot=snapshot,
        key=asset.intent_key,
        # Its own payload's; a session may run several at once. Without any mark it was started by the user's own code.
        work=mark.work if mark is not None else None if snapshot.drivers else snapshot.work,
        run_id=watch.run_id,
        asset_key=asset.intent_key,
        partition_key=asset.partition_key,
        log=watch.log,
        estimate=session.estimate_worker_starts,
    )


def _answer(call: PolicyCall, until: float, limit: float) -> tuple[WorkerIntent, ...] | PolicyProblem | None:
    if call.finished(max(0.0, until - time.monotonic())):
        return call.answer()
    call.abandon()
    return PolicyProblem(sentence=f"The policy did not answer within {limit:g} s; a late answer is ignored.")


def _without_conflict(
    answer: tuple[WorkerIntent, ...] | PolicyProblem | None, taken: Sequence[str]
) -> tuple[WorkerIntent, ...] | PolicyProblem | None:
    """Two policies that set the count of one key would undo each other's work for ever."""
    if not isinstance(answer, tuple):
        return answer
    twice = sorted(intent.key for intent in answer if taken.count(intent.key) > 1)
    if not twice:
        return answer
    return PolicyProblem(
        sentence=f"Another policy of this run also sets the count of {', '.join(map(repr, twice))}; none was followed. "
        "Give each intent a key of its own, such as context.key."
    )


def _act(session: WatchedSession, call: PolicyCall, answer: tuple[WorkerIntent, ...] | PolicyProblem | None) -> Tick:
    if isinstance(answer, PolicyProblem):
        tick = Tick(decision=answer.sentence, snapshot=call.snapshot, problem=answer, work=call.work)
        return follow_up(session, tick)
    if not answer:
        sentence = "The policy leaves the workers as they are."
        return follow_up(session, Tick(decision=sentence, snapshot=call.snapshot, work=call.work))
    return reconcile_intents(session, call.snapshot, answer, call.work)
