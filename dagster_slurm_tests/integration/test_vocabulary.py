"""The command lines and parsers against the box's Slurm."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.slurm.options import sbatch_arguments
from dagster_slurm.slurm.replies import (
    ListedJob,
    Refused,
    Submitted,
    TestOnlyReply,
    parse_accounting,
    parse_listing,
    parse_ping,
    parse_submission,
    parse_test_only,
    sacct_arguments,
    squeue_arguments,
)
from dagster_slurm.slurm.tres import gpus_per_node_requested, parse_tres, total_gpus
from dagster_slurm_tests.cluster import SlurmBox

pytestmark = pytest.mark.integration

_NUMBERS = itertools.count(1)
ODD = "odd % j;name 'x' $HOME é"
COMMENT = f'dagster-slurm {ODD} "quoted" a|b \\n'


class Slurm:
    """The commands, run as the job user, with the parsers behind them."""

    def __init__(self, box: SlurmBox, job_name: str) -> None:
        self.box = box
        self.job_name = job_name

    def ask(self, command: Sequence[str]) -> tuple[int, str, str]:
        done = self.box.as_user(["env", "SLURM_TIME_FORMAT=%s", *command], check=False)
        return done.returncode, done.stdout, done.stderr

    def options(self, shape: EffectiveShape, output: str = "/dev/null", *, test_only: bool = False) -> tuple[str, ...]:
        return sbatch_arguments(shape, job_name=self.job_name, comment=COMMENT, output=output, test_only=test_only)

    def submit(self, shape: EffectiveShape, script: str, output: str = "/dev/null") -> str:
        outcome = parse_submission(*self.ask(["sbatch", *self.options(shape, output), f"--wrap={script}"]))
        assert isinstance(outcome, Submitted), outcome
        return outcome.slurm_job_id

    def estimate(self, shape: EffectiveShape) -> TestOnlyReply:
        status, out, err = self.ask(["sbatch", *self.options(shape, test_only=True)])
        return parse_test_only(status, err + out, int(time.time()))

    def job(self, job_id: str) -> ListedJob:
        status, out, err = self.ask(squeue_arguments(self.job_name))
        listing = parse_listing(status, err + out)
        assert listing.answered, listing.error
        return next(job for job in listing.jobs if job.slurm_job_id == job_id)


def until(reached: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not reached in {seconds:g} s"
        time.sleep(0.2)


@pytest.fixture
def slurm(box: SlurmBox) -> Iterator[Slurm]:
    slurm = Slurm(box, f"{ODD} {os.getpid()} {next(_NUMBERS)}")
    yield slurm
    box.as_user(["scancel", f"--name={slurm.job_name}"])


def test_a_job_is_listed_as_it_was_submitted(slurm: Slurm) -> None:
    shape = EffectiveShape(partition="gpu-a", nodes=2, gpus_per_node="a100:2", time_limit="30", account="research")
    job_id = slurm.submit(shape, "sleep 60")
    until(lambda: slurm.job(job_id).state == "RUNNING")
    job = slurm.job(job_id)
    assert (job.name, job.comment) == (slurm.job_name, COMMENT)
    assert (job.partition, job.account, job.requested_nodes, len(job.nodes)) == ("gpu-a", "research", 2, 2)
    assert (gpus_per_node_requested(job.tres_per_node), total_gpus(parse_tres(job.tres))) == (2, 4)
    assert job.time_limit_seconds == 1800
    assert job.time_left_seconds is not None
    assert 0 < job.time_left_seconds <= 1800
    assert job.submitted_at is not None


def test_P_7_the_log_is_where_it_was_asked_for(slurm: Slurm, fresh_base: Path) -> None:
    log = fresh_base / "50%j %% $HOME 'x'" / "log %a.txt"
    slurm.box.as_user(["mkdir", str(log.parent)])
    slurm.submit(EffectiveShape(), "echo written", str(log))
    until(lambda: log.exists() and "written" in log.read_text())


def test_B_1_a_cancelled_job_is_cancelled_in_accounting(slurm: Slurm) -> None:
    job_id = slurm.submit(EffectiveShape(time_limit="5"), "sleep 60")
    until(lambda: slurm.job(job_id).state == "RUNNING")
    submitted_at = slurm.job(job_id).submitted_at
    assert submitted_at is not None
    slurm.box.as_user(["scancel", job_id])

    def final() -> bool:
        status, out, err = slurm.ask(sacct_arguments([job_id], submitted_at))
        row = parse_accounting(status, err + out).rows.get(job_id)
        named = row is not None and row.name == slurm.job_name
        return named and (row.state, row.submitted_at) == ("CANCELLED", submitted_at)

    until(final)


def test_H_1_H_5_estimates(slurm: Slurm) -> None:
    good = slurm.estimate(EffectiveShape(partition="cpu", time_limit="5"))
    assert (good.answered, good.error, good.partition) == (True, None, "cpu")
    assert good.start_in_seconds is not None
    bad = slurm.estimate(EffectiveShape(partition="gpu-b", gpus_per_node=99))
    assert (bad.answered, bad.start_in_seconds) == (True, None)
    assert bad.error is not None
    assert "not available" in bad.error


def test_I_5_a_refusal_is_definite(slurm: Slurm) -> None:
    command = ["sbatch", *slurm.options(EffectiveShape(partition="nosuch")), "--wrap=true"]
    outcome = parse_submission(*slurm.ask(command))
    assert isinstance(outcome, Refused)
    assert "Invalid partition name" in outcome.text


def test_the_controller_answers(slurm: Slurm) -> None:
    status, out, err = slurm.ask(["scontrol", "ping"])
    assert parse_ping(status, out + err)
