"""Checks of a session in real runs of Dagster, on a played session."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

from typing import Any

import attrs
import dagster as dg
import pytest

from dagster_slurm import (
    ConfigurationError,
    PolicyContext,
    SessionSnapshot,
    WorkerIntent,
    policy_satisfied_check,
    release_all,
    session_healthy_check,
    snapshot_check,
    worker_policy,
)
from dagster_slurm.errors import HostUnreachable, SessionNotFound
from dagster_slurm.run_facts import session_tag
from dagster_slurm_tests.dagster.fakes import FakeSession


class PlayedCompute:
    """Stands in for the resource."""

    def attach_run_allocation_session(self, context: dg.AssetCheckExecutionContext) -> FakeSession:
        if isinstance(SESSIONS[-1], Exception):
            raise SESSIONS[-1]
        return SESSIONS[-1]

    def attach_session(self, run: dg.DagsterRun) -> FakeSession:
        return self.attach_run_allocation_session(None)  # type: ignore[arg-type]


#: The last one is the one that is used.
SESSIONS: list[FakeSession | Exception] = []


def two(context: PolicyContext) -> WorkerIntent:
    """Two workers."""
    return WorkerIntent(key=context.key, count=2)


@dg.asset(metadata=worker_policy(two))
def scores(context: dg.AssetExecutionContext) -> None:
    """Asks for a session, as far as the run's tags tell."""
    context.instance.add_run_tags(context.run.run_id, {session_tag(None): context.run.run_id})


@dg.asset
def plain() -> None:
    """Uses no session."""


def ready_session(workers: int = 0) -> FakeSession:
    session = FakeSession()
    session.head = attrs.evolve(session.head, ready=True)
    for _ in range(workers):
        session.add_worker("scores")
    return session


def evaluate(
    check: dg.AssetChecksDefinition, session: FakeSession | Exception, asset: dg.AssetsDefinition = scores
) -> dg.AssetCheckEvaluation:
    SESSIONS.append(session)
    result = dg.materialize([asset, check], resources={"compute": PlayedCompute()})
    assert result.success
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    # On the page of the check, and in the run's event list.
    assert evaluation.metadata["slurm/decision"].value == evaluation.description
    return evaluation


def all_checks(asset: dg.AssetsDefinition) -> list[dg.AssetChecksDefinition]:
    return [
        session_healthy_check(asset=asset),
        policy_satisfied_check(asset=asset, policy=two),
        snapshot_check(asset=asset, name="always", predicate=lambda _: True),
    ]


def test_a_healthy_session_passes_with_a_table_and_numbers() -> None:
    found = evaluate(session_healthy_check(asset=scores), ready_session(workers=1))
    assert found.passed
    assert found.metadata["slurm/live"].value == 1
    assert [row.data["job"] for row in found.metadata["slurm/allocations"].value.records] == ["1", "100"]


def test_what_is_wrong_is_said_with_what_to_do() -> None:
    session = ready_session()
    session.head = attrs.evolve(session.head, state="TIMEOUT", committed=False, ready=False)
    found = evaluate(session_healthy_check(asset=scores), session)
    assert not found.passed
    assert (
        found.description == "The head's job 1 ended (TIMEOUT). Look at its log. A step with a payload brings another."
    )


@pytest.mark.parametrize("check", all_checks(scores), ids=lambda check: next(iter(check.check_keys)).name)
def test_uncertain_is_never_a_pass(check: dg.AssetChecksDefinition) -> None:
    session = ready_session(workers=2)
    session.certain = False
    found = evaluate(check, session)
    assert not found.passed
    assert "Nothing is known" in (found.description or "")
    assert "slurm/live" not in found.metadata


@pytest.mark.parametrize("check", all_checks(scores), ids=lambda check: next(iter(check.check_keys)).name)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HostUnreachable("No connection to login:22."), "so nothing is known of it. No connection"),
        (SessionNotFound("There is no session directory."), "There is no session to judge."),
    ],
)
def test_a_session_that_cannot_be_looked_at_is_not_a_pass_and_not_a_crash(
    check: dg.AssetChecksDefinition, error: Exception, said: str
) -> None:
    found = evaluate(check, error)
    assert not found.passed
    assert said in (found.description or "")


@pytest.mark.parametrize("check", all_checks(plain), ids=lambda check: next(iter(check.check_keys)).name)
def test_an_asset_without_a_session_says_so(check: dg.AssetChecksDefinition) -> None:
    found = evaluate(check, ready_session(), plain)
    assert not found.passed
    assert "Neither this run nor a run in progress of plain has asked for one." in (found.description or "")


def test_a_check_alone_judges_the_run_that_is_in_progress() -> None:
    SESSIONS.append(ready_session())
    check = session_healthy_check(asset=plain)
    with dg.DagsterInstance.ephemeral() as instance:
        defs = dg.Definitions(assets=[plain], asset_checks=[check], resources={"compute": PlayedCompute()})
        job = defs.resolve_implicit_global_asset_job_def()
        instance.create_run_for_job(
            job.get_subset(asset_selection={plain.key}),
            status=dg.DagsterRunStatus.STARTED,
            tags={session_tag(None): "x"},
            asset_selection=frozenset({plain.key}),
        )
        result = dg.materialize(
            [plain, check],
            selection=dg.AssetSelection.all_asset_checks(),
            instance=instance,
            resources={"compute": PlayedCompute()},
        )
    (found,) = result.get_asset_check_evaluations()
    assert found.passed, found.description


@pytest.mark.parametrize(("live", "passed"), [(2, True), (1, False), (3, False)])
def test_the_policy_on_the_asset_is_satisfied_by_its_count(live: int, passed: bool) -> None:
    found = evaluate(policy_satisfied_check(asset=scores), ready_session(workers=live))
    assert found.passed is passed
    assert (found.description or "").startswith(
        f"The policy asks for 2 worker allocations: {live} of 2 live for 'scores'."
    )
    assert found.metadata["slurm/wanted"].value == 2


def test_only_ready_workers_count_when_that_is_asked() -> None:
    session = ready_session(workers=2)
    session.workers["100"] = attrs.evolve(session.workers["100"], ready=None)
    found = evaluate(policy_satisfied_check(asset=scores, only_ready=True), session)
    assert not found.passed
    assert "1 of 2 ready for 'scores'" in (found.description or "")


def test_a_policy_that_fails_or_leaves_things_as_they_are() -> None:
    def fails(_: PolicyContext) -> None:
        raise KeyError("gpu")

    failed = evaluate(policy_satisfied_check(asset=scores, policy=fails), ready_session())
    assert not failed.passed
    assert "The policy failed: KeyError: 'gpu'" in (failed.description or "")
    assert evaluate(policy_satisfied_check(asset=scores, policy=lambda _: None), ready_session()).passed


def test_a_policy_check_without_a_policy_is_refused() -> None:
    for asset in (plain, "scores"):
        with pytest.raises(ConfigurationError, match="no policy to ask"):
            policy_satisfied_check(asset=asset)


def has_two_nodes(snapshot: SessionSnapshot) -> bool | str:
    """There are two nodes at least."""
    nodes = sum(len(a.nodes) for a in snapshot.allocations)
    return nodes >= 2 or f"only {nodes} nodes"


@pytest.mark.parametrize(
    ("predicate", "passed", "said"),
    [
        (lambda _: True, True, "It holds."),
        (lambda _: False, False, "It does not hold: mine"),
        (has_two_nodes, False, "only 1 nodes"),
        (lambda _: None, False, "It does not hold: mine"),
        (lambda snapshot: snapshot.nothing, False, "The predicate failed: AttributeError"),
    ],
)
def test_a_predicate_of_the_user(predicate: Any, passed: bool, said: str) -> None:
    found = evaluate(snapshot_check(asset=scores, name="mine", predicate=predicate), ready_session(workers=1))
    assert found.passed is passed
    assert said in (found.description or "")


def test_a_check_can_reconcile_when_the_asset_is_done() -> None:
    session = ready_session(workers=2)
    found = evaluate(session_healthy_check(asset=scores, reconcile=release_all), session)
    assert found.passed
    assert "Reconciled: The policy wants 0 worker allocations of 'scores'. Released jobs 100, 101." in (
        found.description or ""
    )
    assert all(worker.drain_deadline is not None for worker in session.workers.values())
    again = evaluate(session_healthy_check(asset=scores, reconcile=lambda _: None), session)
    assert "Reconciled" not in (again.description or "")


def test_what_is_held_back_for_long_is_found_in_the_records() -> None:
    SESSIONS.append(ready_session())
    held = {"slurm/decision": "x", "slurm/held_back": "limit: no more than 3"}
    with dg.DagsterInstance.ephemeral() as instance:
        for metadata in (held, held):
            instance.report_runless_asset_event(dg.AssetObservation("scores", metadata=metadata))
        for limit, passed in ((3600, True), (0, False)):
            check = session_healthy_check(asset=scores, pending_limit_seconds=limit)
            result = dg.materialize([scores, check], instance=instance, resources={"compute": PlayedCompute()})
            (found,) = result.get_asset_check_evaluations()
            assert found.passed is passed, found.description
        assert "limit: no more than 3" in (found.description or "")
        instance.report_runless_asset_event(dg.AssetObservation("scores", metadata={"slurm/decision": "all done"}))
        result = dg.materialize([scores, check], instance=instance, resources={"compute": PlayedCompute()})
        assert result.get_asset_check_evaluations()[0].passed
