"""The tasks of the search: what one is, how it is scored, and its checkpoint on the shared filesystem.

Runs on the cluster with Python's standard library, NumPy and scikit-learn alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import sklearn
from sklearn.datasets import load_digits
from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

SCORING_VERSION = 1
"""Part of every checkpoint's name. Raise it when `evaluate` changes what a score means."""


@dataclass(frozen=True)
class Trial:
    """One task: a support vector machine with these parameters, cross-validated on the digits.

    Attributes:
        cost: The penalty ``C``.
        gamma: The width of the radial kernel, for pixels scaled to 0..1.
        folds: Parts of one cross-validation, at least 2.
        repeats: How often the cross-validation is repeated with other parts, at least 1.
        samples: How many images are used, from the first; None means all 1,797.
    """

    cost: float
    gamma: float
    folds: int
    repeats: int
    samples: int | None


@dataclass(frozen=True)
class Outcome:
    """A finished task, and what its checkpoint holds.

    Attributes:
        trial: What was evaluated.
        score: Mean accuracy over all folds, 0 to 1.
        spread: Standard deviation of the accuracy over the folds.
        cpu_seconds: CPU time of the evaluation.
        slurm_job_id: The allocation it ran in; None outside Slurm.
        node: The host it ran on.
    """

    trial: Trial
    score: float
    spread: float
    cpu_seconds: float
    slurm_job_id: str | None
    node: str


def grid(costs: int, gammas: int, *, folds: int, repeats: int, samples: int | None) -> tuple[Trial, ...]:
    """Every pair of `costs` penalties and `gammas` kernel widths, spaced evenly by order of magnitude."""
    return tuple(
        Trial(cost, gamma, folds, repeats, samples)
        for cost in _spaced(0.1, 100.0, costs)
        for gamma in _spaced(0.01, 0.8, gammas)
    )


def _spaced(low: float, high: float, count: int) -> list[float]:
    # Three significant digits: readable in tables, and the same on every machine.
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, count)]


def dataset_digest() -> str:
    """A short digest of the digits as this installation of scikit-learn ships them."""
    pixels, labels = load_digits(return_X_y=True)
    return hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()[:16]


def trial_key(trial: Trial, dataset: str) -> str:
    """Name of a task's checkpoint: the same only for the same parameters, data, code and scikit-learn.

    Args:
        trial: The task.
        dataset: What `dataset_digest` gives.
    """
    parts = {
        "trial": asdict(trial),
        "dataset": dataset,
        "scoring": SCORING_VERSION,
        "scikit-learn": sklearn.__version__,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def evaluate(trial: Trial, slurm_job_id: str | None) -> Outcome:
    """Cross-validate one task on one CPU, from a fixed seed: the same task always gets the same score."""
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = pixels[: trial.samples] / 16.0, labels[: trial.samples]
    parts = RepeatedStratifiedKFold(n_splits=trial.folds, n_repeats=trial.repeats, random_state=0)
    begin = time.process_time()
    # The scheduler granted one CPU per task; numeric libraries would take all of the host's.
    with threadpool_limits(limits=1):
        scores = cross_val_score(SVC(C=trial.cost, gamma=trial.gamma), pixels, labels, cv=parts, n_jobs=1)
    return Outcome(
        trial=trial,
        score=float(scores.mean()),
        spread=float(scores.std()),
        cpu_seconds=round(time.process_time() - begin, 3),
        slurm_job_id=slurm_job_id,
        node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
    )


def load_checkpoint(directory: Path, key: str) -> Outcome | None:
    """The finished task of that key; None when it has not finished, or its file cannot be read as one."""
    try:
        stored = json.loads((directory / f"{key}.json").read_text(encoding="utf-8"))
        return Outcome(**{**stored, "trial": Trial(**stored["trial"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        # Damaged by hand or by a full disk: the task runs again and its file is replaced.
        return None


def load_checkpoints(directory: Path, keys: Sequence[str]) -> Mapping[str, Outcome]:
    """The finished ones among `keys`."""
    found = ((key, load_checkpoint(directory, key)) for key in keys)
    return {key: outcome for key, outcome in found if outcome is not None}


def save_checkpoint(directory: Path, key: str, outcome: Outcome) -> None:
    """Write a task's checkpoint; a reader sees all of it or nothing."""
    write_whole(directory / f"{key}.json", json.dumps(asdict(outcome), indent=1).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a name of its own and rename it: two writers never mix, a reader never sees a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
