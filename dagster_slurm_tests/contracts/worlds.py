"""One set of words for two worlds: a session on the simulated scheduler, and one on the real Slurm of the box."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import attrs

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Committed, Effect, Site
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.remote.scripts import absence_script
from dagster_slurm.remote.site import RemoteSite
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens
from dagster_slurm.slurm.replies import AccountingReply, ListedJob, parse_accounting
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.faults.test_sbatch_answers import TIMED_OUT, shim
from dagster_slurm_tests.sessions import HELD, Place, until

_SMALL = EffectiveShape(partition="cpu", cpus_per_task=1, mem="100M", time_limit="00:10:00")
_SMALL_HELD = attrs.evolve(_SMALL, extra_options=("--hold",))


class World(Protocol):
    """A session, what its scheduler does, and the ways in which it misbehaves."""

    site: Site
    job_name: str

    def start(self, job_id: str) -> None:
        """Have a pending job run."""

    def finish(self, job_id: str) -> None:
        """Have a running job end well."""

    def requeue(self, job_id: str) -> None:
        """An administrator puts a running job back into the queue."""

    def rename(self, job_id: str) -> None:
        """Its user gives a pending job another name."""

    def strangers(self) -> tuple[str, str]:
        """A job of ours with another name, and another user's with the session's name."""

    def state(self, job_id: str) -> str | None:
        """What the scheduler says of any job; None when it knows nothing."""

    def answering(self, how: str) -> contextlib.AbstractContextManager[Site]:
        """A site whose next submission meets "refused", "lost", "nothing" or "late"."""

    def late_arrive(self) -> None:
        """What was late comes now."""

    def forget_ended(self, job_id: str) -> None:
        """Wait until the listing does not show an ended job any more."""

    def account(self, job_id: str) -> AccountingReply:
        """Ask accounting."""


def reconcile(site: Site, count: int, config: SlurmWorkerAllocationConfig | None = None) -> Outcome:
    """One ``reconcile_workers`` of the intent ``w``."""
    request = WorkerRequest(intents=(WorkerIntent("w", count, config, drain_timeout=30),))
    return carry_out(site, lambda o: plan_workers(known(o), o, request, fresh_tokens()))


def submit(world: World, *, held: bool = False) -> str:
    """One worker more; its job id."""
    counted = [r for r in known(world.site.observe()).workers if r.drain_deadline is None and r.final_state is None]
    (job_id,) = reconcile(world.site, len(counted) + 1, HELD if held else None).submitted
    return job_id


def commit(site: Site, *effects: Effect, even_if_closing: bool = False, **changed: object) -> Committed | CommitRefused:
    """Commit effects and nothing else."""
    observation = site.observe()
    nonce = secrets.token_hex(16)
    request = CommitRequest(
        nonce=nonce,
        expected_sha256=observation.ledger_sha256,
        observed_at=observation.login_clock,
        ledger=attrs.evolve(known(observation), last_commit=nonce).to_bytes(),
        effects=effects,
        even_if_closing=even_if_closing,
    )
    return site.commit(attrs.evolve(request, **changed))


def known(observation: Observation) -> Ledger:
    """The ledger of a look."""
    assert observation.ledger is not None
    return observation.ledger


def row(world: World, job_id: str) -> ListedJob:
    """The listing's row of a job."""
    found = world.site.observe().listed(job_id)
    assert found is not None
    return found


# -- simulated ---------------------------------------------------------------------------------------


class SimulatedWorld:
    """A session in memory."""

    def __init__(self) -> None:
        self.scheduler = SimulatedScheduler()
        self.site = SimulatedSite(self.scheduler)
        self.job_name = "dagster-sim"
        carry_out(self.site, lambda o: plan_head(o, "sim", _SMALL_HELD, _SMALL, fresh_tokens()))

    def start(self, job_id: str) -> None:
        self.scheduler.jobs[job_id].held = False
        self.site.start_job(job_id)

    def finish(self, job_id: str) -> None:
        self.scheduler.end(job_id, "COMPLETED")

    def requeue(self, job_id: str) -> None:
        self.scheduler.requeue(job_id)

    def rename(self, job_id: str) -> None:
        self.scheduler.jobs[job_id].name = "renamed"

    def strangers(self) -> tuple[str, str]:
        other_name = self.scheduler.submit(f"{self.job_name}-2", "", "", 600, held=True)
        other_user = self.scheduler.submit(self.job_name, "", "", 600, held=True, user="other")
        return other_name.slurm_job_id, other_user.slurm_job_id  # type: ignore[union-attr]

    def state(self, job_id: str) -> str | None:
        job = self.scheduler.jobs.get(job_id)
        return None if job is None else job.state

    @contextlib.contextmanager
    def answering(self, how: str) -> Iterator[Site]:
        self.scheduler.submission_answers = [how]
        yield self.site
        self.scheduler.submission_answers = []

    def late_arrive(self) -> None:
        self.scheduler.deliver_late()

    def forget_ended(self, job_id: str) -> None:
        self.scheduler.advance(self.scheduler.min_job_age_seconds)

    def account(self, job_id: str) -> AccountingReply:
        return self.scheduler.account((job_id,))


# -- real --------------------------------------------------------------------------------------------


class RealWorld:
    """A session on the box."""

    def __init__(self, box: SlurmBox, place: Place, base: Path) -> None:
        self._box = box
        self._place = place
        self._base = base
        self._others: list[str] = []
        place.create()
        self._shell = place.shell()
        self.site: Site = RemoteSite(self._shell, place.settings())
        self.job_name = place.job_name

    def start(self, job_id: str) -> None:
        self._box.run(["scontrol", "release", job_id], check=False)
        until(lambda: self.state(job_id) != "PENDING", f"job {job_id} starts")

    def finish(self, job_id: str) -> None:
        # The stub ends well when it is told to, once it listens.
        logs = self._place.directory / "submissions"
        until(lambda: any(f"stub of {job_id} runs" in p.read_text() for p in logs.glob("*/log")), "the stub runs")
        self._box.run(["scancel", "--batch", "--signal=TERM", job_id])
        until(lambda: self.state(job_id) not in ("RUNNING", "COMPLETING"), f"job {job_id} ends")

    def requeue(self, job_id: str) -> None:
        self._box.run(["scontrol", "update", f"JobId={job_id}", "Requeue=1"])
        self._box.run(["scontrol", "requeue", job_id])
        until(lambda: self.state(job_id) == "PENDING", f"job {job_id} is pending again")

    def rename(self, job_id: str) -> None:
        self._box.as_user(["scontrol", "update", f"JobId={job_id}", "JobName=renamed"])
        self._others.append(job_id)

    def strangers(self) -> tuple[str, str]:
        options = ["--parsable", "--hold", "--output=/dev/null", "--mem=100M", "--wrap=true"]
        other_name = self._box.as_user(["sbatch", f"--job-name={self.job_name}-2", *options]).stdout.strip()
        other_user = self._box.run(["sbatch", f"--job-name={self.job_name}", *options]).stdout.strip()
        self._others += [other_name, other_user]
        return other_name, other_user

    def state(self, job_id: str) -> str | None:
        said = self._box.run(["squeue", "-h", "-t", "all", f"--jobs={job_id}", "--format=%T"], check=False).stdout
        return said.strip() or None

    @contextlib.contextmanager
    def answering(self, how: str) -> Iterator[Site]:
        go = self._base / "go"
        lost = f'echo "{TIMED_OUT}" >&2\nexit 1\n'
        text = {
            "refused": "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2\nexit 1\n",
            "lost": f'$real "$@" >/dev/null\n{lost}',
            "nothing": lost,
            "late": f'(until [ -e {go} ]; do sleep 0.05; done; exec $real "$@") >/dev/null 2>&1 &\n{lost}',
        }[how]
        shell = self._place.shell(slurm_bin=shim(self._box, self._base, text))
        yield RemoteSite(shell, self._place.settings())
        shell.close()

    def late_arrive(self) -> None:
        before = self._count()
        (self._base / "go").touch()
        until(lambda: self._count() > before, "the late job comes")

    def _count(self) -> int:
        rows = self._box.run(["squeue", "-h", "-t", "all", f"--name={self.job_name}", "--format=%A"]).stdout
        return len(rows.split())

    def forget_ended(self, job_id: str) -> None:
        until(lambda: self.state(job_id) is None, f"job {job_id} vanishes", 150)

    def account(self, job_id: str) -> AccountingReply:
        script = absence_script(self._place.settings(), (job_id,), self.site.observe().login_clock - 3600)
        section = self._shell.run(script).section("accounting")
        assert section is not None
        return parse_accounting(section.status, section.text)

    def clear(self) -> None:
        """Cancel what does not bear the session's name."""
        if self._others:
            self._box.run(["scancel", *self._others])
