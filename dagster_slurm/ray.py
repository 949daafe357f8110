"""For programs that run on the cluster: payloads and their Ray tasks.

Needs Python and, for the functions that look at resources, ray; nothing else of ``dagster_slurm`` is imported.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_Primary = TypeVar("_Primary")
_Reserve = TypeVar("_Reserve")

ResourceProvider = Callable[[], Mapping[str, float]]

_WORK_FILE = "DAGSTER_SLURM_WORK_FILE"
_NODE_FILE = "DAGSTER_SLURM_NODE_FILE"

#: Ray counts resources in ten-thousandths; smaller differences are rounding.
_ROUNDING = 1e-4


def report_work(remaining: float, **facts: Any) -> bool:
    """Tell the session how much work is left, for its policy (``context.work``).

    Each report replaces the one before. Call it as often as you like, for example once per finished task.

    Args:
        remaining: Units of work not finished yet, at least 0; what a unit is, is between payload and policy.
        facts: More for the policy, anything that JSON can hold.

    Returns:
        True when it was written, False outside of a payload (nothing happens then).

    Raises:
        ValueError: ``remaining`` is negative or not finite.
        TypeError: a value is not one that JSON can hold.
    """
    if isinstance(remaining, bool) or not isinstance(remaining, (int, float)):
        raise TypeError(f"remaining has to be a number, not {remaining!r}")
    if not math.isfinite(remaining) or remaining < 0:
        raise ValueError(f"remaining has to be a finite number of at least 0, not {remaining!r}")
    text = json.dumps({**facts, "remaining": remaining}, allow_nan=False)
    path = os.environ.get(_WORK_FILE)
    if not path:
        return False
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text + "\n")
    os.replace(temporary, path)
    return True


def node_is_draining() -> bool | None:
    """Whether the node that this code runs on is being released and takes no new work.

    Returns:
        None when that is not known: outside of an allocation, or when the node's report cannot be read.
    """
    path = os.environ.get(_NODE_FILE)
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as stream:
            report = json.load(stream)
    except (OSError, ValueError):
        return None
    draining = report.get("draining") if isinstance(report, dict) else None
    return draining if isinstance(draining, bool) else None


def wait_for_stable_ray_resources(
    minimum_resources: Mapping[str, float],
    *,
    stable_polls: int = 2,
    poll_interval_seconds: float = 1.0,
    timeout_seconds: float | None = None,
    resource_provider: ResourceProvider | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, float]:
    """Wait until Ray's free resources cover a minimum in several polls in a row.

    It observes and reserves nothing: another task can take the resources right afterwards.

    Args:
        minimum_resources: What has to be free, in Ray's names (``{"CPU": 4, "GPU": 1}``). Empty is covered at once.
        stable_polls: Polls in a row that have to cover the minimum, at least 1.
        poll_interval_seconds: Pause between polls.
        timeout_seconds: None waits without a limit. 0 or less makes a single poll.
        resource_provider: What is free now; by default ``ray.available_resources`` of the connected cluster.
        clock: Monotonic clock in seconds.
        sleep: How to pause.

    Returns:
        The last poll's free resources.

    Raises:
        TimeoutError: the minimum was not covered in time; the message names what was missing in the last poll.
        ValueError: ``stable_polls`` is below 1, or a minimum or interval is negative.
    """
    snapshot = _wait(
        minimum_resources,
        stable_polls=stable_polls,
        poll_interval_seconds=poll_interval_seconds,
        timeout_seconds=timeout_seconds,
        resource_provider=resource_provider,
        clock=clock,
        sleep=sleep,
        stopped=lambda: False,
    )
    if snapshot is None:
        raise AssertionError("a wait that nobody stops ends with a snapshot or a timeout")
    return snapshot


def run_with_ray_reserve_topup(
    primary: Callable[[], _Primary],
    reserve: Callable[[dict[str, float]], _Reserve],
    minimum_resources: Mapping[str, float],
    *,
    stable_polls: int = 2,
    poll_interval_seconds: float = 1.0,
    timeout_seconds: float | None = None,
    resource_provider: ResourceProvider | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[_Primary, _Reserve | None]:
    """Run ``primary`` now, and ``reserve`` beside it once enough capacity has stayed free.

    ``primary`` runs in the calling thread, ``reserve`` in a second one. When ``primary`` ends before the capacity came,
    ``reserve`` is never started; a ``reserve`` that has started is waited for.

    Args:
        primary: The work that does not wait for anything.
        reserve: Additional work; gets the free resources that were seen.
        minimum_resources: What has to be free for ``reserve``.
        stable_polls: As in ``wait_for_stable_ray_resources``, like the arguments that are not named here.
        timeout_seconds: Give up waiting for capacity after that; None waits as long as ``primary`` runs.

    Returns:
        Both results; the second is None when the capacity never came.

    Raises:
        Exception: what ``primary`` raised, else what ``reserve`` or the resource provider raised.
        ValueError: as ``wait_for_stable_ray_resources``, before anything is started.
    """
    _check(minimum_resources, stable_polls, poll_interval_seconds)
    primary_ended = threading.Event()

    def top_up() -> tuple[_Reserve] | None:
        try:
            snapshot = _wait(
                minimum_resources,
                stable_polls=stable_polls,
                poll_interval_seconds=poll_interval_seconds,
                timeout_seconds=timeout_seconds,
                resource_provider=resource_provider,
                clock=clock,
                sleep=primary_ended.wait,
                stopped=primary_ended.is_set,
            )
        except TimeoutError:
            return None
        return None if snapshot is None else (reserve(snapshot),)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray-reserve") as beside:
        topping_up = beside.submit(top_up)
        try:
            first = primary()
        finally:
            primary_ended.set()
    second = topping_up.result()
    return first, None if second is None else second[0]


def _check(minimum_resources: Mapping[str, float], stable_polls: int, poll_interval_seconds: float) -> None:
    if stable_polls < 1:
        raise ValueError(f"stable_polls has to be at least 1, not {stable_polls}")
    if poll_interval_seconds < 0:
        raise ValueError(f"poll_interval_seconds has to be at least 0, not {poll_interval_seconds}")
    for name, amount in minimum_resources.items():
        if not amount >= 0:
            raise ValueError(f"minimum_resources[{name!r}] has to be at least 0, not {amount!r}")


def _missing(minimum: Mapping[str, float], free: Mapping[str, float]) -> dict[str, float]:
    """How much of each resource is missing; empty when the minimum is covered."""
    lacking = {name: amount - free.get(name, 0.0) for name, amount in minimum.items()}
    return {name: amount for name, amount in lacking.items() if amount > _ROUNDING}


def _wait(
    minimum: Mapping[str, float],
    *,
    stable_polls: int,
    poll_interval_seconds: float,
    timeout_seconds: float | None,
    resource_provider: ResourceProvider | None,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    stopped: Callable[[], bool],
) -> dict[str, float] | None:
    """The wait itself; None when ``stopped`` became true before the minimum was covered."""
    _check(minimum, stable_polls, poll_interval_seconds)
    free_now = _ray_resources if resource_provider is None else resource_provider
    deadline = None if timeout_seconds is None else clock() + timeout_seconds
    in_a_row = 0
    while not stopped():
        snapshot = dict(free_now())
        missing = _missing(minimum, snapshot)
        in_a_row = 0 if missing else in_a_row + 1
        if in_a_row >= stable_polls:
            return snapshot
        left = math.inf if deadline is None else deadline - clock()
        if left <= 0:
            raise TimeoutError(
                f"Ray's free resources did not cover {dict(minimum)} in {stable_polls} polls in a row within "
                f"{timeout_seconds} s; the last poll lacked {missing or 'nothing'} of it."
            )
        sleep(min(poll_interval_seconds, left))
    return None


def _ray_resources() -> Mapping[str, float]:
    import ray

    free: Mapping[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return free
