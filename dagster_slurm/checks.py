"""Asset checks from factories: is the session healthy, is the policy satisfied, does your own predicate hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import dagster as dg

from dagster_slurm.allocations.snapshot import SessionSnapshot
from dagster_slurm.check_session import Judgement, Options, Question, describe_held_back, judge_session
from dagster_slurm.errors import ConfigurationError
from dagster_slurm.health import findings
from dagster_slurm.metadata import find_policy
from dagster_slurm.policy import Policy, PolicyProblem, active

CheckedAsset: TypeAlias = "dg.AssetsDefinition | dg.AssetKey | str | Sequence[str]"
Predicate: TypeAlias = Callable[[SessionSnapshot], "bool | str"]


def session_healthy_check(
    *,
    asset: CheckedAsset,
    name: str = "slurm_session_healthy",
    resource_key: str = "compute",
    pending_limit_seconds: float = 900,
    reconcile: Policy | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    blocking: bool = False,
) -> dg.AssetChecksDefinition:
    """A check that passes when everything is observed, Ray's head is ready, and nothing waits for long or fails.

    The session is the one of the check's own run; without one, that of the newest run in progress of the asset.
    A failed check does not fail its run, whatever its severity.

    Args:
        asset: The asset.
        name: The check's name.
        resource_key: Key of the ``SlurmComputeResource``.
        pending_limit_seconds: A worker may wait, and wishes may be held back, for this long.
        reconcile: A policy that is asked after the look, and whose intents are reconciled; ``release_all`` releases
            every worker.
        severity: Of a check that does not pass.
        blocking: Whether assets downstream wait for it, and are not made when it fails with severity ERROR.
    """

    def judge(question: Question) -> Judgement:
        found = findings(question.snapshot, pending_limit_seconds)
        held_back = describe_held_back(question.instance, question.asset_key, pending_limit_seconds)
        found = found if held_back is None else (*found, held_back)
        sentence = " ".join(found) or "Everything is observed, the head is ready, and nothing waits for long or fails."
        return Judgement(passed=not found, sentence=sentence)

    options = Options(resource_key=resource_key, reconcile=reconcile, severity=severity)
    return _check(asset, name, "Ray's head is ready; no worker waits for long or fails.", options, blocking, judge)


def policy_satisfied_check(
    *,
    asset: CheckedAsset,
    policy: Policy | None = None,
    name: str = "slurm_policy_satisfied",
    resource_key: str = "compute",
    only_ready: bool = False,
    reconcile: Policy | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    blocking: bool = False,
) -> dg.AssetChecksDefinition:
    """A check that passes when as many worker allocations are live as the policy asks for now.

    Args:
        asset: The asset.
        policy: None takes the one on the asset, which then has to be given as its definition.
        name: The check's name.
        resource_key: Key of the ``SlurmComputeResource``.
        only_ready: Count those only whose every node has joined Ray.
        reconcile: As in ``session_healthy_check``; give the policy once more to have it followed.
        severity: Of a check that does not pass.
        blocking: As in ``session_healthy_check``.

    Raises:
        ConfigurationError: no policy is given, and none is on the asset.
    """
    asked = policy
    if asked is None and isinstance(asset, dg.AssetsDefinition):
        asked = next((found for found in map(find_policy, asset.metadata_by_key.values()) if found), None)
    if asked is None:
        raise ConfigurationError(
            "policy_satisfied_check has no policy to ask.",
            field="policy",
            remedy="give policy=, or the asset's definition with worker_policy(...) in its metadata.",
        )
    known: Policy = asked

    def judge(question: Question) -> Judgement:
        answer = question.ask(known)
        if isinstance(answer, PolicyProblem):
            return Judgement(passed=False, sentence=f"{answer.sentence} Test it with a hand-made PolicyContext.")
        if not answer:
            return Judgement(passed=True, sentence="The policy leaves the workers as they are.")
        parts, passed = [], True
        for intent in answer:
            live = active(question.snapshot, intent.key)
            counted = [w for w in live if w.ready] if only_ready else live
            passed = passed and len(counted) == intent.count
            parts.append(f"{len(counted)} of {intent.count} {'ready' if only_ready else 'live'} for {intent.key!r}")
        wanted = sum(intent.count for intent in answer)
        sentence = f"The policy asks for {wanted} worker allocations: {', '.join(parts)}."
        if not passed:
            sentence += " If this lasts, see what the last tick held back, and whether the step or the sensor runs."
        return Judgement(passed=passed, sentence=sentence, wanted=wanted)

    options = Options(resource_key=resource_key, reconcile=reconcile, severity=severity)
    return _check(asset, name, "As many workers are live as the policy asks for.", options, blocking, judge)


def snapshot_check(
    *,
    asset: CheckedAsset,
    predicate: Predicate,
    name: str,
    description: str | None = None,
    resource_key: str = "compute",
    reconcile: Policy | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    blocking: bool = False,
) -> dg.AssetChecksDefinition:
    """A check of your own on the session's snapshot.

    Args:
        asset: The asset.
        predicate: ``predicate(snapshot)``; True passes, False does not, and a text does not and says why. It is not
            asked when the scheduler did not answer: the check does not pass then.
        name: The check's name.
        description: For its page; None takes the first line of the predicate's docstring.
        resource_key: Key of the ``SlurmComputeResource``.
        reconcile: As in ``session_healthy_check``.
        severity: Of a check that does not pass.
        blocking: As in ``session_healthy_check``.
    """
    said = description or (predicate.__doc__ or "").strip().partition("\n")[0] or None

    def judge(question: Question) -> Judgement:
        try:
            answer = predicate(question.snapshot)
        # The boundary to the user's code.
        except Exception as error:  # noqa: BLE001
            return Judgement(passed=False, sentence=f"The predicate failed: {type(error).__name__}: {error}")
        if answer is True:
            return Judgement(passed=True, sentence=said or "It holds.")
        why = answer if isinstance(answer, str) else f"It does not hold: {said or name}"
        return Judgement(passed=False, sentence=why)

    options = Options(resource_key=resource_key, reconcile=reconcile, severity=severity)
    return _check(asset, name, said, options, blocking, judge)


def _check(
    asset: CheckedAsset,
    name: str,
    description: str | None,
    options: Options,
    blocking: bool,
    judge: Callable[[Question], Judgement],
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name=name,
        description=description,
        blocking=blocking,
        required_resource_keys={options.resource_key},
    )
    def check(context) -> dg.AssetCheckResult:  # type: ignore[no-untyped-def]  # Dagster reads annotations as written
        return judge_session(context, name, options, judge)

    return check
