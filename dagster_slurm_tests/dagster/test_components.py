"""The component, from YAML to a run on the stand-in for the resource."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.core.package_entry import DG_PLUGIN_ENTRY_POINT_GROUP
from dagster.components.testing import create_defs_folder_sandbox
from dagster.components.testing.utils import component_defs

from dagster_slurm import ConfigurationError, FakeSlurmCompute
from dagster_slurm.components import ElasticRayAsset

# Dagster itself reads YAML with a function that pydantic calls deprecated, and notes files with classes in beta.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore:Class `.*CodeReference"),
]

ROOT = Path(__file__).parents[2]
POLICIES = """
from dagster_slurm import PolicyContext, WorkerIntent


def two(context: PolicyContext) -> WorkerIntent:
    "Two workers, always."
    return WorkerIntent(key=context.key, count=2)
"""


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "policies_of_a_user.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)
    yield "policies_of_a_user"
    sys.modules.pop("policies_of_a_user", None)


def load_and_run(**attributes: Any) -> dg.ExecuteInProcessResult:
    """Run what a project with this component has, while the project's files are there."""
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=ElasticRayAsset,
            defs_path="scores",
            defs_yaml_contents={
                "type": "dagster_slurm.components.ElasticRayAsset",
                "attributes": {"key": "group/scores", "payload": "score.py", **attributes},
            },
        )
        (path / "score.py").write_text("print('hello')\n")
        with sandbox.build_all_defs() as defs:
            compute = FakeSlurmCompute(work=[{"remaining": 1}] * 3)
            made = dg.Definitions.merge(defs, dg.Definitions(resources={"compute": compute}))
            result = made.resolve_implicit_global_asset_job_def().execute_in_process()
    assert result.success
    return result


def test_an_asset_in_yaml_runs_with_its_policy_and_its_checks(policies: str) -> None:
    result = load_and_run(policy=f"{policies}.two", group_name="search")
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.asset_key == dg.AssetKey(["group", "scores"])
    assert event.materialization.metadata["slurm/most_workers_live"].value == 2
    checks = {found.check_name: found.passed for found in result.get_asset_check_evaluations()}
    assert checks.keys() == {"slurm_session_healthy", "slurm_policy_satisfied"}
    assert checks["slurm_session_healthy"]
    key = event.materialization.asset_key
    node = result.job_def.asset_layer.get(key)
    assert node.kinds == {"slurm", "ray"}
    assert node.group_name == "search"
    assert "two: Two workers, always." in str(node.metadata["slurm/policy"])


def test_without_a_policy_and_checks_it_only_runs() -> None:
    result = load_and_run(checks=False)
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["slurm/most_workers_live"].value == 0
    assert result.get_asset_check_evaluations() == []


@pytest.mark.parametrize("policy", ["nothing_of_this_name.two", "two", "policies_of_a_user.three"])
def test_a_policy_that_cannot_be_imported_is_named(policies: str, policy: str) -> None:
    component = ElasticRayAsset(key="scores", payload="score.py", policy=policy)
    with pytest.raises(ConfigurationError, match=policy):
        component_defs(component=component)


def test_a_payload_that_is_not_there_is_named() -> None:
    component = ElasticRayAsset(key="scores", payload="missing.py")
    with pytest.raises(ConfigurationError, match=r"missing\.py"):
        component_defs(component=component)


def test_dagster_s_list_of_components_finds_it() -> None:
    tomllib = pytest.importorskip("tomllib") if sys.version_info >= (3, 11) else None
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points."{DG_PLUGIN_ENTRY_POINT_GROUP}"]' in text
    if tomllib is not None:
        (value,) = tomllib.loads(text)["project"]["entry-points"][DG_PLUGIN_ENTRY_POINT_GROUP].values()
        module = EntryPoint("dagster_slurm", value, DG_PLUGIN_ENTRY_POINT_GROUP).load()
        assert module.ElasticRayAsset is ElasticRayAsset
