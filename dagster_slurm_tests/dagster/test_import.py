"""What an import costs: `dagster_slurm.ray` runs on the cluster, a policy's test runs without Dagster."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dagster_slurm

HEAVY = ("dagster", "paramiko", "ray", "matplotlib")


def loaded_by(statement: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import dagster_slurm",
        "import dagster_slurm.ray",
        "from dagster_slurm import PolicyContext, WorkerIntent, SlurmWorkerAllocationConfig, SessionSnapshot",
        "import dagster_slurm; dir(dagster_slurm)",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    assert loaded_by(statement) == set()


def test_the_resource_loads_dagster_but_connects_to_nothing() -> None:
    assert loaded_by("from dagster_slurm import SlurmComputeResource, worker_policy") == {"dagster"}


def test_every_public_name_is_there() -> None:
    for name in dagster_slurm.__all__:
        assert getattr(dagster_slurm, name).__name__ == name
    assert set(dagster_slurm.__all__) <= set(dir(dagster_slurm))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(dagster_slurm.__file__).read_text())
    (typing_only,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = [name.asname for node in typing_only.body if isinstance(node, ast.ImportFrom) for name in node.names]
    assert sorted(map(str, seen)) == dagster_slurm.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dagster_slurm.nothing
