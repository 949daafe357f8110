"""Sessions on the box for tests: where they live, the stub that stands in for Ray, faults, and an outside observer."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.site import RemoteSite
from dagster_slurm.remote.ssh import SshAddress, SshShell
from dagster_slurm.session.creation import SessionSpec, create_or_attach
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.cluster.bringup import give_to_job_user
from dagster_slurm_tests.cluster.daemons import Process, identify, is_stopped, send

#: Stays pending for ever, so that a test of counts starts no processes.
HELD = SlurmWorkerAllocationConfig(extra_options=("--hold",))
SMALL = EffectiveShape(partition="cpu", cpus_per_task=1, mem="100M", time_limit="00:10:00")
_SMALL_HELD = attrs.evolve(SMALL, extra_options=("--hold",))

_LIVE = "PENDING,CONFIGURING,RUNNING,SUSPENDED"

# Stands in for Python with Ray where a test needs none: stays until it is told to end, as an agent would.
# STUB_IGNORES_DRAIN (from the session's setup lines) makes it one whose work never ends.
_STUB = """#!/bin/sh
[ "$1" != -c ] || exit 0
while [ $# -gt 0 ]; do
    case $1 in --session) session=$2 ;; --token) token=$2 ;; esac
    shift
done
trap 'exit 0' TERM
trap : USR1
echo "stub of $SLURM_JOB_ID runs"
until [ -e "$session/closing" ]; do
    [ -n "$STUB_IGNORES_DRAIN" ] || ! [ -e "$session/submissions/$token/drain" ] || break
    sleep 0.5 &
    wait $!
done
"""


def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Poll until the condition holds; fails the test when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def processes_of(directory: Path, slurm_job_id: str = "") -> dict[int, str]:
    """Agents of sessions below ``directory`` and the processes that they started on this host; of one job, or all."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            ours = str(directory).encode() in environment + command
            report = f"{directory}/nodes/{slurm_job_id}.".encode()
            of_job = report in environment or f"SLURM_JOB_ID={slurm_job_id}\0".encode() in environment
            if command and ours and (not slurm_job_id or of_job):
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


#: Connections of the test that runs: a thousand tests would keep a thousand sshd busy.
_SHELLS: list[SshShell] = []


@attrs.frozen(kw_only=True)
class Place:
    """Where one session lives and how to get there. A plain value: it can be sent to another process.

    Attributes:
        limits: Fields of SessionSettings that differ from their defaults.
    """

    address: SshAddress
    remote_setup: str
    slurm_bin: str | None
    base: str
    python: str
    session_id: str
    limits: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def directory(self) -> Path:
        return Path(self.base) / "sessions" / self.session_id

    @property
    def job_name(self) -> str:
        return self.settings().job_name

    def settings(self, **limits: Any) -> SessionSettings:
        values = {"python": self.python, **self.limits, **limits}
        return SessionSettings(session_id=self.session_id, session_dir=str(self.directory), **values)

    def shell(self, *, faults: str = "", slurm_bin: str | None = None) -> SshShell:
        """A connection of its own, closed after the test. ``faults`` are shell lines that every script runs first."""
        shell = SshShell(self.address, f"{self.remote_setup}\n{faults}", slurm_bin or self.slurm_bin)
        _SHELLS.append(shell)
        return shell

    def reached_through(self, port: int, known_hosts: Path) -> Place:
        """The same place behind a relay; ``known_hosts`` is written with the login node's key for its port."""
        _, _, key = Path(str(self.address.known_hosts)).read_text().partition(" ")
        known_hosts.write_text(f"[{self.address.host}]:{port} {key}")
        return attrs.evolve(self, address=attrs.evolve(self.address, port=port, known_hosts=str(known_hosts)))

    def spec(self, *, head: EffectiveShape = _SMALL_HELD, worker: EffectiveShape = SMALL) -> SessionSpec:
        return SessionSpec(settings=self.settings(), remote_base=self.base, head=head, worker=worker)

    def create(self, *, head: EffectiveShape = _SMALL_HELD, worker: EffectiveShape = SMALL) -> AllocationSession:
        """Create the session; its head stays pending unless another shape is given."""
        return create_or_attach(self.shell(), self.spec(head=head, worker=worker))

    def create_running(self) -> AllocationSession:
        """Create the session with a head that runs."""
        return self.create(head=SMALL)

    def open(self, *, faults: str = "", slurm_bin: str | None = None, **limits: Any) -> AllocationSession:
        """Another client of the session, without any remote command."""
        return self.session_on(self.shell(faults=faults, slurm_bin=slurm_bin), **limits)

    def session_on(self, shell: SshShell, **limits: Any) -> AllocationSession:
        """A client of the session that uses this connection."""
        settings = self.settings(**limits)
        return AllocationSession(shell, RemoteSite(shell, settings), settings)


def close_connections() -> None:
    """Close what places have connected; ``place`` does it after each test."""
    while _SHELLS:
        _SHELLS.pop().close()


def make_place(box: SlurmBox, base: Path, **limits: Any) -> Place:
    """A place for one session below ``base``, with the stub as its Python."""
    stub = base / "python"
    if not stub.exists():
        stub.write_text(_STUB)
        stub.chmod(0o755)
        give_to_job_user(stub, box.definition)
    return Place(
        address=SshAddress(
            host=box.host,
            port=box.port,
            user=box.user,
            key_file=box.key_file,
            known_hosts=box.known_hosts,
        ),
        remote_setup=box.remote_setup,
        slurm_bin=box.slurm_bin,
        base=str(base),
        python=str(stub),
        session_id=f"t-{secrets.token_hex(4)}",
        limits=limits,
    )


# -- the outside observer ----------------------------------------------------------------------------


class Observer:
    """Looks at a session as root, past the code under test: the queue, slurmctld's log, the session's files."""

    def __init__(self, box: SlurmBox, place: Place) -> None:
        self._box = box
        self._place = place
        self._log = box.directory / "log" / "slurmctld.log"
        self._mark = self._log.stat().st_size

    def queue(
        self, *, name: str | None = None, states: str = "PENDING,CONFIGURING,RUNNING,SUSPENDED"
    ) -> dict[str, str]:
        """State of each job of the session's name, by job id; by default those that are pending or run."""
        name = self._place.job_name if name is None else name
        listing = ["squeue", "--noheader", f"--states={states}", f"--name={name}", "--format=%A %T"]
        return dict(line.split() for line in self._box.run(listing).stdout.splitlines())

    def workers(self) -> dict[str, str]:
        """As ``queue``, without the head."""
        head = self.ledger()["head"]
        return {job: state for job, state in self.queue().items() if head is None or job != head["slurm_job_id"]}

    def tokens(self) -> list[str]:
        """Token in the comment of each job that is pending or runs, the head's included."""
        return [line.split()[-1] for line in self._list("%k")]

    def _list(self, form: str) -> list[str]:
        listing = ["squeue", "--noheader", f"--states={_LIVE}", f"--name={self._place.job_name}", f"--format={form}"]
        return self._box.run(listing).stdout.splitlines()

    def mark(self) -> None:
        """Count submissions from here on."""
        self._mark = self._log.stat().st_size

    def accepted(self) -> list[str]:
        """Ids of the jobs that slurmctld accepted since the mark, without those it shows under another name."""
        text = self._log.read_bytes()[self._mark :].decode(errors="replace")
        ids = re.findall(r"_slurm_rpc_submit_batch_job: JobId=(\d+) ", text)
        listing = self._box.run(["squeue", "--noheader", "--states=all", "--format=%A %j"]).stdout
        foreign = {
            job for job, _, name in (row.partition(" ") for row in listing.splitlines()) if name != self._place.job_name
        }
        return [job for job in ids if job not in foreign]

    def ledger(self) -> dict[str, Any]:
        """The ledger as stored."""
        found: dict[str, Any] = json.loads(self.ledger_bytes())
        return found

    def ledger_bytes(self) -> bytes:
        return (self._place.directory / "allocation.json").read_bytes()

    def ledger_sum(self) -> str:
        return hashlib.sha256(self.ledger_bytes()).hexdigest()

    def recorded(self, intent: str | None) -> list[str]:
        """Job ids that the ledger has for an intent and that are neither ended nor released."""
        return [
            record["slurm_job_id"]
            for record in self.ledger()["workers"]
            if record["intent"] == intent and record["final_state"] is None and record["drain_deadline"] is None
        ]

    def open_tokens(self) -> list[str]:
        return list(self.ledger()["worker_submissions"])

    def check(self) -> None:
        """What holds at any moment: one live job per token, each recorded or open, and the lock free."""
        ledger, tokens = self.ledger(), self.tokens()
        assert len(tokens) == len(set(tokens)), "two live jobs bear one token"
        leading = (ledger["head"], ledger.get("successor"), *ledger["predecessors"])
        records = [r for r in (*leading, *ledger["workers"]) if r is not None]
        ids = [record["slurm_job_id"] for record in records]
        assert len(ids) == len(set(ids))
        known = {record["token"] for record in records} | set(ledger["worker_submissions"])
        assert set(tokens) <= known, "a live job that no record explains"


# -- faults ------------------------------------------------------------------------------------------


def at_step(checkpoint: str, occurrence: int, action: str) -> str:
    """Fault lines: a commit script does ``action`` when it comes to a step for the n-th time."""
    return (
        "fault_seen=0\n"
        f'checkpoint() {{ [ "$1" = {checkpoint} ] || return 0; fault_seen=$((fault_seen + 1)); '
        f'[ "$fault_seen" -ne {occurrence} ] || {{ {action}; }}; }}\n'
    )


class Kill:
    """The shell of one commit script is killed at one of its steps.

    Args:
        directory: For its files; made here, must be reachable by the job user.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o777)
        self._marker = directory / "killed"

    @property
    def happened(self) -> bool:
        return self._marker.exists()

    def at(self, checkpoint: str, *, occurrence: int = 1) -> str:
        """Fault lines: once, and the client can go on."""
        return at_step(checkpoint, occurrence, self.command())

    def with_client_at(self, checkpoint: str, *, occurrence: int = 1) -> str:
        """Fault lines: from then on this client's scripts end at once, as if the client had died as well."""
        return self.dead_client() + self.at(checkpoint, occurrence=occurrence)

    def command(self) -> str:
        """The shell command that does it, once."""
        return f"{{ mkdir {self._marker} 2>/dev/null && kill -9 $$; }}"

    def dead_client(self) -> str:
        """A fault line: once the kill has happened, a script ends at once."""
        return f"[ ! -e {self._marker} ] || exit 7\n"


def clock_ahead(seconds: int) -> str:
    """Fault lines: the login node's clock is ahead by this much."""
    return f'date() {{ case $1 in +%s) echo $(($(command date +%s) + {seconds})) ;; *) command date "$@" ;; esac; }}\n'


class Pause:
    """A place where a remote script waits, and the way to let it go on. Scripts that come later go straight through."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o777)
        directory.chmod(0o777)
        self._directory = directory

    def at(self, checkpoint: str, *, occurrence: int = 1) -> str:
        """Fault lines: the commit script stops itself with SIGSTOP at a step."""
        return at_step(checkpoint, occurrence, self.stop())

    def stop(self) -> str:
        """One shell command that stops the script's own shell, once."""
        return (
            f"[ -e {self._directory}/pid ] || {{ echo $$ >{self._directory}/pid.$$; "
            f"mv {self._directory}/pid.$$ {self._directory}/pid; kill -STOP $$; }}"
        )

    def wait(self) -> str:
        """One shell command that waits until ``resume``, once; for steps inside a subshell."""
        return (
            f"{{ mkdir {self._directory}/reached 2>/dev/null && "
            f"until [ -e {self._directory}/go ]; do sleep 0.02; done; }}"
        )

    def reached(self) -> None:
        """Wait until the script has come to the step."""

        def there() -> bool:
            if (self._directory / "reached").exists():
                return True
            process = self._process()
            return process is not None and is_stopped(process)

        until(there, "the script at its step")

    def resume(self) -> None:
        """Let it go on."""
        (self._directory / "go").touch()
        process = self._process()
        if process is not None:
            send(process, signal.SIGCONT)

    def _process(self) -> Process | None:
        try:
            return identify(int((self._directory / "pid").read_text()))
        except FileNotFoundError:
            return None


# -- fixtures ----------------------------------------------------------------------------------------


@pytest.fixture
def place(box: SlurmBox, fresh_base: Path) -> Iterator[Place]:
    """A place for a new session; its jobs are cancelled after the test."""
    made = make_place(box, fresh_base)
    yield made
    close_connections()
    box.run(["scancel", f"--name={made.job_name}"])


@pytest.fixture
def observer(box: SlurmBox, place: Place) -> Observer:
    """Looks at the session of ``place``; counts submissions from now on."""
    return Observer(box, place)


@pytest.fixture
def kill(fresh_base: Path) -> Kill:
    """A kill whose files the job user can reach."""
    return Kill(fresh_base / "kill")


@pytest.fixture
def pause(fresh_base: Path) -> Pause:
    """A pause whose files the job user can reach."""
    return Pause(fresh_base / "pause")
