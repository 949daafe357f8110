"""What runs on the cluster needs Python alone to be imported; Ray only where it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dagster_slurm

ROOT = Path(dagster_slurm.__file__).parents[1]

#: Isolated and without site-packages: nothing but the standard library and this package can be found.
PROGRAM = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
module = importlib.import_module(sys.argv[2])
allowed = set(sys.stdlib_module_names) | {"__main__", "dagster_slurm"}
print(sorted(name for name in sys.modules if name.split(".")[0] not in allowed))
exec(sys.argv[3])
"""

USE = """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "work.json")
os.environ["DAGSTER_SLURM_WORK_FILE"] = path
assert module.report_work(remaining=3)
assert open(path).read() == '{"remaining": 3}\\n'
assert module.node_is_draining() is None
assert module.wait_for_stable_ray_resources({"CPU": 1}, resource_provider=lambda: {"CPU": 2}, poll_interval_seconds=0)
assert module.run_with_ray_reserve_topup(lambda: 1, lambda free: 2, {}, resource_provider=dict)[0] == 1
try:
    module.wait_for_stable_ray_resources({"CPU": 1})
except ModuleNotFoundError as error:
    assert error.name == "ray"
"""


@pytest.mark.parametrize(("module", "use"), [("dagster_slurm.ray", USE), ("dagster_slurm.agent.commands", "pass")])
def test_it_is_imported_and_used_with_python_alone(module: str, use: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT), module, use], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")
