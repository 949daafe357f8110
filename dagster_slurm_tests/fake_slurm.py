"""The real scripts of a session on this machine, with Slurm commands that are a few lines of shell.

For tests of the scripts' own steps: quick, and every command and rename can be watched. Nothing of Slurm is shown by
them: for that there is the box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import Ledger, read_ledger
from dagster_slurm.allocations.lifecycle import plan_end, plan_head
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Plan
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.shell import LocalShell
from dagster_slurm.remote.site import RemoteSite
from dagster_slurm.session.commit_loop import Outcome, carry_out, fresh_tokens
from dagster_slurm_tests.builders import HEAD_SHAPE, WORKER_SHAPE

# Each begins by noting its call. A file of a command's name in ``instead`` replaces it; ``real`` calls the usual one.
_COMMANDS = {
    "sbatch": """
for word do case $word in --job-name=*) name=${word#*=} ;; --comment=*) comment=${word#*=} ;; esac; done
id=1
until (set -C; : >"$fake/jobs/$id") 2>/dev/null; do id=$((id + 1)); done
printf 'state=PENDING name=%s comment=%s command=%s' "$name" "'$comment'" "$word" >"$fake/jobs/$id"
echo "$id"
""",
    "squeue": r"""
for job in "$fake"/jobs/*; do
    [ -e "$job" ] || continue
    eval "$(cat "$job")"
    id=${job##*/}
    for field in "$id" "$state" 1:00:00 1:00:00 1700000000 N/A 1 '' cpu=1 N/A main normal acc me "$name" None \
        "$command" "$comment" "$id"; do printf '%s\037' "$field"; done
    printf '\036'
done
""",
    "scancel": """
pending=no
for word do case $word in
    --state=PENDING) pending=yes ;;
    [0-9]*) grep -q state=PENDING "$fake/jobs/$word" || [ $pending = no ] || continue
        sed -i 's/state=[A-Z]*/state=CANCELLED/' "$fake/jobs/$word" ;;
esac; done
""",
    "scontrol": 'echo "Slurmctld(primary) at here is UP"\n',
    "sacct": "",
}


class EditedShell(LocalShell):
    """A local shell whose scripts are changed before they run: a text, and what stands in its place.

    Attributes:
        made: Edits whose text was found.
    """

    def __init__(self, setup: str, slurm_bin: str, edits: Mapping[str, str], made: set[str]) -> None:
        super().__init__(setup, slurm_bin)
        self._edits = edits
        self.made = made

    def run(self, body: str, *, timeout_seconds: float = 60.0) -> Reply:
        for old, new in self._edits.items():
            if old in body:
                self.made.add(old)
                body = body.replace(old, new)
        return super().run(body, timeout_seconds=timeout_seconds)


@attrs.define
class FakeSlurm:
    """One session whose scripts run here.

    Attributes:
        directory: Where everything lies.
        edited: Texts of scripts that were found and replaced.
    """

    directory: Path
    edited: set[str] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        for name in ("bin", "jobs", "instead", *(f"session/{part}" for part in ("open", "submissions", "commits"))):
            (self.directory / name).mkdir(parents=True)
        for name, text in _COMMANDS.items():
            program = self.directory / "bin" / name
            replaced = f'if [ -e "$fake/instead/{name}" ]; then . "$fake/instead/{name}"; else real "$@"; fi\n'
            noted = f'call=$(printf "%s " {name} "$@" | tr "\\n" " ")\nprintf "%s\\n" "$call" >>"$fake/calls"\n'
            program.write_text(f"#!/bin/sh\nfake={self.directory}\n{noted}real() {{ :\n{text}}}\n{replaced}")
            program.chmod(0o755)

    @property
    def session(self) -> Path:
        return self.directory / "session"

    def calls(self, command: str) -> list[str]:
        """How a command was called so far."""
        path = self.directory / "calls"
        # Not splitlines: the separators of squeue's fields would end lines for it.
        lines = path.read_text().split("\n") if path.exists() else []
        return [line.strip() for line in lines if line.partition(" ")[0] == command]

    def instead(self, command: str, text: str | None) -> None:
        """Replace a command by these shell lines, or bring the usual one back."""
        path = self.directory / "instead" / command
        if text is None:
            path.unlink()
        else:
            path.write_text(text)

    def jobs(self) -> dict[str, str]:
        """State of every job."""
        return {p.name: p.read_text().split()[0].removeprefix("state=") for p in (self.directory / "jobs").iterdir()}

    def live(self) -> list[str]:
        """Jobs that are pending or run."""
        return sorted(job for job, state in self.jobs().items() if state in ("PENDING", "RUNNING"))

    def set_state(self, job: str, state: str) -> None:
        path = self.directory / "jobs" / job
        path.write_text(f"state={state} " + path.read_text().partition(" ")[2])

    def ledger(self) -> Ledger:
        return read_ledger((self.session / "allocation.json").read_bytes(), path="allocation.json")

    def site(self, setup: str = "", edits: Mapping[str, str] | None = None, **limits: int) -> RemoteSite:
        """One client; ``setup`` runs before its scripts, ``edits`` change their text."""
        settings = SessionSettings(session_id="fake", session_dir=str(self.session), **limits)
        return RemoteSite(EditedShell(setup, str(self.directory / "bin"), edits or {}, self.edited), settings)

    def create(self) -> None:
        """A head that runs."""
        carry_out(self.site(), lambda o: plan_head(o, "fake", HEAD_SHAPE, WORKER_SHAPE, fresh_tokens()))
        self.set_state("1", "RUNNING")

    def call(self, count: int, site: RemoteSite | None = None, **request: object) -> Outcome:
        """One ``reconcile_workers``."""
        asked = WorkerRequest(intents=(WorkerIntent("w", count),), **request)  # type: ignore[arg-type]
        return self.carry_out(lambda o: plan_workers(_known(o), o, asked, fresh_tokens()), site)

    def end(self) -> Outcome:
        """One round of the session's end."""
        return carry_out(self.site(), lambda o: plan_end(o, "fake"), even_if_closing=True, pause=lambda _: None)

    def carry_out(self, decide: Callable[[Observation], Plan], site: RemoteSite | None = None) -> Outcome:
        return carry_out(site or self.site(), decide, pause=lambda _: None)


def _known(observation: Observation) -> Ledger:
    assert observation.ledger is not None
    return observation.ledger


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    """A session with a running head."""
    made = FakeSlurm(tmp_path / "fake")
    made.create()
    return made
