"""sbatch says one thing and the scheduler does another: lost answers, refusals, and jobs that come up late."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_slurm.allocations import bookkeeping
from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import SubmissionRefused
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import HELD, Observer, Pause, Place, until

pytestmark = pytest.mark.fault("F4")

TWO = WorkerIntent("w", 2, HELD)
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


# What sbatch says when a message to or from the controller was lost.
FAILURES = [
    TIMED_OUT,
    "sbatch: error: Unable to contact slurm controller (connect failure)",
    *(
        pytest.param(f"sbatch: error: Batch job submission failed: {text}", marks=pytest.mark.slow)
        for text in (
            "Zero Bytes were transmitted or received",
            "Unexpected message received",
            "Slurm backup controller in standby mode",
            "Connection refused",
            "Connection reset by peer",
            "Connection timed out",
            "Communication connection failure",
            "Communication shutdown failure",
            "Message receive failure",
            "Message send failure",
            "Protocol authentication error",
            "Insane message length",
            "Header lengths are longer than data received",
            "No route to host",
            "Network is unreachable",
            "Broken pipe",
            "Resource temporarily unavailable",
        )
    ),
]


def shim(box: SlurmBox, base: Path, text: str) -> str:
    """A directory with an ``sbatch`` of our own; ``$real`` is the real one."""
    directory = base / "bin"
    directory.mkdir()
    directory.chmod(0o755)
    real = f"{box.slurm_bin or '/usr/bin'}/sbatch"
    assert Path(real).exists()
    program = directory / "sbatch"
    program.write_text(f"#!/bin/sh\nreal={real}\n{text}")
    program.chmod(0o755)
    return str(directory)


def started(place: Place) -> list[str]:
    """Tokens whose job has claimed its fate file."""
    return [path.parent.name for path in place.directory.glob("submissions/*/started.*")]


@pytest.mark.parametrize("failure", FAILURES)
def test_submitted_although_sbatch_reports_a_lost_answer(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, failure: str
) -> None:
    place.create()
    observer.mark()
    directory = shim(box, fresh_base, f'$real "$@" >/dev/null\necho "{failure}" >&2\nexit 1\n')
    doubtful = place.open(slurm_bin=directory).reconcile_workers(TWO)
    # One may exist, so nothing more is tried in that call.
    assert len(observer.accepted()) == 1
    assert doubtful.submitted == ()
    assert doubtful.held_back.codes == ("unresolved",)
    assert failure.split(":")[-1].strip() in str(doubtful.held_back)
    result = place.open().reconcile_workers(TWO)
    first, second = observer.accepted()
    assert result.recovered == (first,)
    assert result.submitted == (second,)
    assert sorted(result.live) == sorted(observer.workers()) == sorted(observer.recorded("w")) == [first, second]
    observer.check()


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_second_of_three_is_submitted_although_its_answer_is_lost(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, failure: str
) -> None:
    place.create()
    observer.mark()
    tries = fresh_base / "tries"
    tries.touch()
    tries.chmod(0o666)
    second = f'echo x >>{tries}\n[ "$(grep -c x {tries})" = 2 ] || exec $real "$@"\n'
    directory = shim(box, fresh_base, f'{second}$real "$@" >/dev/null\necho "{failure}" >&2\nexit 1\n')
    three = WorkerIntent("w", 3, HELD)
    doubtful = place.open(slurm_bin=directory).reconcile_workers(three)
    # The first is known, the second may exist, and the third is not tried.
    first, lost = observer.accepted()
    assert (doubtful.submitted, doubtful.held_back.codes) == ((first,), ("unresolved",))
    result = place.open().reconcile_workers(three)
    assert result.recovered == (lost,)
    assert [first, lost, *result.submitted] == observer.accepted()
    assert sorted(result.live) == sorted(observer.workers()) == sorted(observer.recorded("w"))
    assert len(result.live) == 3
    observer.check()


#: How a command ends that the node or the site ends.
@pytest.mark.slow
@pytest.mark.parametrize(
    "end", ["kill -1 $$", "kill -6 $$", "kill -11 $$", "kill -15 $$", "exit 124", "exit 137", "exit 143"]
)
def test_submitted_by_an_sbatch_that_was_ended_from_outside(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, end: str
) -> None:
    place.create()
    observer.mark()
    directory = shim(box, fresh_base, f'$real "$@" >/dev/null\n{end}\n')
    assert place.open(slurm_bin=directory).reconcile_workers(TWO).held_back.codes == ("unresolved",)
    result = place.open().reconcile_workers(TWO)
    assert (len(result.recovered), len(result.submitted), len(observer.accepted())) == (1, 1, 2)
    observer.check()


def test_sbatch_that_prints_nothing_or_is_killed_is_no_refusal(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path
) -> None:
    place.create()
    observer.mark()
    directory = shim(box, fresh_base, '$real "$@" >/dev/null\nkill -9 $$\n')
    doubtful = place.open(slurm_bin=directory).reconcile_workers(TWO)
    assert (doubtful.submitted, doubtful.held_back.codes) == ((), ("unresolved",))
    result = place.open().reconcile_workers(TWO)
    assert len(result.recovered) == len(result.submitted) == 1
    assert len(observer.accepted()) == 2
    observer.check()


def test_refusal_is_dropped_at_once_and_said(box: SlurmBox, place: Place, observer: Observer) -> None:
    place.create()
    observer.mark()
    session = place.open()
    nowhere = SlurmWorkerAllocationConfig(partition="nowhere")
    result = session.reconcile_workers([WorkerIntent("bad", 3, nowhere), WorkerIntent("good", 1, HELD)])
    assert "refused" in result.held_back.codes
    assert "invalid partition" in str(result.held_back)
    assert list(result.submitted) == list(result.live) == observer.accepted() == observer.recorded("good")
    assert observer.open_tokens() == []
    assert list((place.directory / "open").iterdir()) == []
    with pytest.raises(SubmissionRefused, match="invalid partition"):
        session.add_worker_allocation(nowhere)
    assert len(observer.accepted()) == 1
    observer.check()


def test_refusal_is_tried_once_by_one_call(box: SlurmBox, place: Place, observer: Observer, fresh_base: Path) -> None:
    place.create()
    observer.mark()
    tries = fresh_base / "tries"
    tries.touch()
    tries.chmod(0o666)
    refusal = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"
    directory = shim(box, fresh_base, f'echo x >>{tries}\necho "{refusal}" >&2\nexit 1\n')
    result = place.open(slurm_bin=directory).reconcile_workers(WorkerIntent("w", 5, HELD))
    assert tries.read_text() == "x\n"
    assert refusal.split(": ")[-1] in str(result.held_back)
    assert (observer.accepted(), observer.open_tokens()) == ([], [])


def test_job_of_a_dropped_submission_that_comes_up_late_does_nothing(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create()
    observer.mark()
    go = fresh_base / "go"
    late = f'(until [ -e {go} ]; do sleep 0.05; done; exec $real "$@") >/dev/null 2>&1 &\n'
    directory = shim(box, fresh_base, f'{late}echo "{TIMED_OUT}" >&2\nexit 1\n')
    one = WorkerIntent("w", 1)
    assert place.open(slurm_bin=directory).reconcile_workers(one).held_back.codes == ("unresolved",)
    (token,) = observer.open_tokens()
    # Until it has settled it counts as live.
    assert place.open().reconcile_workers(one).submitted == ()

    monkeypatch.setattr(bookkeeping, "SETTLE_SECONDS", 0)
    result = place.open().reconcile_workers(one)
    (replacement,) = result.submitted
    assert observer.accepted() == [replacement]
    assert token in observer.ledger()["revoked_tokens"]
    assert (place.directory / "submissions" / token / "revoked").exists()

    go.touch()
    until(lambda: len(observer.accepted()) == 2, "the late job accepted")
    latecomer = observer.accepted()[1]
    log = place.directory / "submissions" / token / "log"
    until(lambda: log.exists() and "a submission that was dropped" in log.read_text(), "the late job ended by itself")
    for _ in range(2):
        again = place.open().reconcile_workers(one)
        assert (again.submitted, again.recovered, again.live) == ((), (), (replacement,))
    until(lambda: list(observer.workers().items()) == [(replacement, "RUNNING")], "only the replacement runs")
    assert latecomer not in observer.recorded("w")
    assert token not in started(place)
    assert "stub" not in log.read_text()


def test_late_job_that_is_still_pending_is_cancelled(
    box: SlurmBox, place: Place, observer: Observer, fresh_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create()
    observer.mark()
    go = fresh_base / "go"
    late = f'(until [ -e {go} ]; do sleep 0.05; done; exec $real "$@") >/dev/null 2>&1 &\n'
    directory = shim(box, fresh_base, f'{late}echo "{TIMED_OUT}" >&2\nexit 1\n')
    one = WorkerIntent("w", 1, HELD)
    place.open(slurm_bin=directory).reconcile_workers(one)
    monkeypatch.setattr(bookkeeping, "SETTLE_SECONDS", 0)
    (replacement,) = place.open().reconcile_workers(one).submitted
    go.touch()
    until(lambda: len(observer.workers()) == 2, "the late job pending")
    assert place.open().reconcile_workers(one).live == (replacement,)
    until(lambda: list(observer.workers()) == [replacement], "the late job cancelled")
    assert place.open().end().complete
    assert observer.queue() == {}


@pytest.mark.fault("F5")
@pytest.mark.parametrize("repeat", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 30))])
def test_controller_stopped_during_sbatch_and_its_client_killed(
    box: SlurmBox, place: Place, observer: Observer, pause: Pause, monkeypatch: pytest.MonkeyPatch, repeat: int
) -> None:
    place.create()
    observer.mark()
    one = WorkerIntent("w", 1)
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(place.open(faults=pause.at("before-sbatch")).reconcile_workers, one)
        pause.reached()
        box.stop_daemon("slurmctld")
        try:
            pause.resume()
            until(lambda: requests_waiting(box) and bool(sbatch_processes(box)), "the request at the controller's door")
            for pid in sbatch_processes(box):
                os.kill(pid, signal.SIGKILL)
            result = growing.result(timeout=60)
        finally:
            box.continue_daemon("slurmctld")
    assert (result.submitted, result.held_back.codes) == ((), ("unresolved",))
    (token,) = observer.open_tokens()
    # The first good listing usually lacks the job that the controller is about to make.
    monkeypatch.setattr(bookkeeping, "SETTLE_SECONDS", 0)
    following = place.open().reconcile_workers(one)
    until(lambda: len(observer.accepted()) == 1 + len(following.submitted), "the late job accepted")
    place.open().reconcile_workers(one)
    until(lambda: list(observer.workers().values()) == ["RUNNING"], "one worker runs")
    until(lambda: len(started(place)) == 1, "one job claimed its fate")
    last = place.open().reconcile_workers(one)
    assert last.submitted == ()
    assert list(last.live) == list(observer.workers()) == observer.recorded("w")
    dropped = token in observer.ledger()["revoked_tokens"]
    assert dropped == bool(following.submitted)
    assert (token in started(place)) == (not dropped)
    observer.check()


def requests_waiting(box: SlurmBox) -> bool:
    """Whether bytes wait on a connection to slurmctld that it has not read."""
    port = f":{box.definition.ports.slurmctld:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(local.endswith(port) and int(queues.split(":")[1], 16) > 0 for _, local, _, _, queues, *_ in rows)


def sbatch_processes(box: SlurmBox) -> list[int]:
    """Ids of the box's own running sbatch commands."""
    return [p.pid for p in box.processes() if Path(f"/proc/{p.pid}/comm").read_text() == "sbatch\n"]
