"""How much of the generated tests runs: a subset that is the same every time, or the full set from one seed.

``make test`` runs the subset, so that it depends on no luck; ``make faults`` the full set with a seed of its own,
which pytest prints first: ``make faults SEED=<number>`` repeats it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SEED_VARIABLE = "DAGSTER_SLURM_FULL_SET_SEED"

#: Seed of the full set; None when only the subset runs.
FULL_SET_SEED = int(os.environ[SEED_VARIABLE]) if os.environ.get(SEED_VARIABLE) else None

# How long an example takes depends on what else the machine does.
_COMMON = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("subset", _COMMON, derandomize=True)
settings.register_profile("full-set", _COMMON, derandomize=False, print_blob=True)


def load_profile() -> None:
    """Choose the settings of generated tests; before any of them is imported."""
    settings.load_profile("subset" if FULL_SET_SEED is None else "full-set")


def amount(subset: int, full_set: int) -> int:
    """That many in the subset, that many in the full set."""
    return subset if FULL_SET_SEED is None else full_set


def base_seed() -> int:
    """Where the seeds of tests that draw their own numbers begin."""
    return FULL_SET_SEED or 0
