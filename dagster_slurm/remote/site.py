"""The real cluster as a site: each look one remote command, each commit one remote command."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.conditions import unanswered_ids, with_absent
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Committed
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.errors import LockTimeout, SessionDirectoryUnsafe
from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.replies import read_commit, read_observation
from dagster_slurm.remote.scripts import absence_script, close_script, commit_script, observe_script
from dagster_slurm.remote.shell import RemoteShell
from dagster_slurm.slurm.replies import Listing, parse_accounting, parse_listing

OBSERVE_TIMEOUT_SECONDS = 40.0
ACCOUNTING_MARGIN_SECONDS = 86_400


@attrs.frozen
class RemoteSite:
    """A session's place on a cluster, reached through a remote shell."""

    shell: RemoteShell
    settings: SessionSettings

    def observe(self) -> Observation:
        """Look once; a second remote command asks about recorded jobs that left the listing unexplained."""
        reply = self.shell.run(observe_script(self.settings), timeout_seconds=OBSERVE_TIMEOUT_SECONDS)
        return self._explained(read_observation(reply, self.settings, self.shell.address))

    def _explained(self, observation: Observation) -> Observation:
        gone = unanswered_ids(observation)
        if not gone or observation.ledger is None:
            return observation
        # Sites bound the date range of a query, so it begins shortly before our oldest submission in question.
        times = [r.submitted_at for r in observation.ledger.records() if r.slurm_job_id in gone and r.submitted_at]
        since = min([observation.login_clock - ACCOUNTING_MARGIN_SECONDS, *(t - 3600 for t in times)])
        reply = self.shell.run(absence_script(self.settings, gone, since), timeout_seconds=OBSERVE_TIMEOUT_SECONDS)
        observation = with_absent(observation, _listing(reply, "by-id"))
        section = reply.section("accounting")
        if section is None:
            return observation
        return attrs.evolve(observation, accounting=parse_accounting(section.status, section.text))

    def commit(self, request: CommitRequest) -> Committed | CommitRefused:
        """Commit once.

        Raises:
            RemoteError: there was no complete answer; whether it was done is unknown.
            LockTimeout: the session lock stayed taken.
            SessionDirectoryUnsafe: the session directory cannot be written.
        """
        bound = self.settings.lock_wait_seconds + self.settings.effect_limit_seconds + 60.0
        reply = self.shell.run(commit_script(self.settings, request), timeout_seconds=bound)
        answer = read_commit(reply, self.settings, self.shell.address)
        if isinstance(answer, Committed):
            return answer
        if answer.code == "locked":
            raise _lock_timeout(answer.detail, self.settings)
        if answer.code in ("unwritable", "gone"):
            raise SessionDirectoryUnsafe(
                f"The session directory {self.settings.session_dir} on {self.shell.address} could not be written; "
                "nothing was submitted.",
                cluster_said=answer.detail,
                remedy="check free space, quota and permissions of remote_base.",
            )
        return attrs.evolve(answer, observation=self._explained(answer.observation))

    def close_by_name(self) -> Listing:
        """Mark the session as ending, cancel every job of its name, and look: for records that cannot be read."""
        return _listing(self.shell.run(close_script(self.settings), timeout_seconds=OBSERVE_TIMEOUT_SECONDS), "listing")


def _listing(reply: Reply, name: str) -> Listing:
    section = reply.section(name)
    if section is None:
        return Listing(answered=False, error="the reply to squeue did not arrive whole")
    return parse_listing(section.status, section.text)


def _lock_timeout(detail: str, settings: SessionSettings) -> LockTimeout:
    path, owner, age = (detail.split() + ["unknown"] * 3)[:3]
    fields = owner.split(",")
    host, pid = (fields[1], fields[4]) if len(fields) >= 6 else ("unknown", "unknown")
    return LockTimeout(
        f"The session lock {path} stayed taken for {settings.lock_wait_seconds} s: owner {fields[0]}, "
        f"process {pid} on host {host}, age {age} s by the filesystem's clock. Nothing was submitted.",
        remedy=f"call again: a lock is taken over when its process is gone or after {settings.lock_stale_seconds} s.",
    )
