"""Record what a real Slurm answers: python -m dagster_slurm_tests.recordings.record --dir <a box of your own>.

The jobs, reservations and node states that it makes are gone afterwards; the box's daemons are stopped and started.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.slurm.options import sbatch_arguments
from dagster_slurm.slurm.replies import parse_listing, sacct_arguments, squeue_arguments
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.recordings import DIRECTORY, Recording

ODD_COMMENT = "tok:abc=1,x|y é \"q\" 's' $HOME %d \\n; end"


class Recorder:
    """Runs commands as the job user and keeps their replies."""

    def __init__(self, box: SlurmBox) -> None:
        self.box = box
        words = box.run(["squeue", "--version"]).stdout.split()[-1].split(".")
        self.folder = DIRECTORY / ".".join(words[:2])
        self.folder.mkdir(exist_ok=True)
        self.name = ""
        self.script = box.fresh_base(f"recording-{os.getpid()}") / "batch with blanks.sh"
        self.script.write_text("#!/bin/sh\nsleep 600\n")

    def ask(self, command: Sequence[str]) -> Recording:
        done = self.box.as_user(["env", "SLURM_TIME_FORMAT=%s", *command], check=False)
        hidden = [text.replace(str(self.box.directory), "/box") for text in (*command, done.stdout, done.stderr)]
        return Recording(tuple(hidden[:-2]), done.returncode, hidden[-2], hidden[-1])

    def keep(self, name: str, command: Sequence[str]) -> Recording:
        recording = self.ask(command)
        recording.write(self.folder / f"{name}.txt")
        return recording

    def submit(self, *options: str, wrap: str | None = None) -> str:
        what = [str(self.script), "an argument"] if wrap is None else ["--wrap", wrap]
        command = ["sbatch", "--parsable", "-o", "/dev/null", "-J", self.name, *options, *what]
        return self.box.as_user(command).stdout.strip()

    def listing(self) -> Recording:
        return self.ask(squeue_arguments(self.name))

    def states(self) -> dict[str, str | None]:
        recording = self.listing()
        return {job.slurm_job_id: job.state for job in parse_listing(recording.status, recording.text).jobs}

    def until(self, what: str, reached: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not reached in {seconds:g} s; states: {self.states()}")
            time.sleep(0.2)

    def until_state(self, job_id: str, *words: str) -> None:
        self.until(f"job {job_id} {' or '.join(words)}", lambda: self.states().get(job_id) in words)


@contextmanager
def killed(box: SlurmBox, daemon: str) -> Iterator[None]:
    """While inside, that daemon is dead."""
    box.kill_daemon(daemon)
    try:
        yield
    finally:
        box.start_daemon(daemon)


def pending_and_running(recorder: Recorder) -> None:
    """Many reasons to wait, two nodes with GPUs, odd texts, an array, a heterogeneous job."""
    running = recorder.submit("-p", "gpu-a", "-N2", "--gpus-per-node=a100:2", "-t", "30", "--comment", ODD_COMMENT)
    per_job = recorder.submit("-p", "gpu-b", "--gpus=1", "--comment", "first line\nsecond line", wrap="sleep 600")
    unlimited = recorder.submit("-p", "cpu", "-t", "600", "--comment", "c" * 1000)
    recorder.submit("-p", "gpu-a", "-N4", "--gpus-per-node=4", "-t", "30")
    recorder.submit("-p", "gpu-a", "-N4", "--gpus-per-node=4", "-t", "2-0")
    recorder.submit("-p", "gpu-a", "--array=0-3%1", "-t", "30")
    recorder.submit("-H", "-t", "3-1:2:3")
    recorder.submit("--begin=now+3600")
    recorder.submit("--dependency=afterok:" + running)
    for job_id in (running, per_job, unlimited):
        recorder.until_state(job_id, "RUNNING")
    # Beyond the limit of the partition, which only the administrator can do.
    recorder.box.run(["scontrol", "update", f"JobId={running}", "TimeLimit=1-02:03:04"])
    recorder.box.run(["scontrol", "update", f"JobId={unlimited}", "TimeLimit=UNLIMITED"])

    def planned() -> bool:
        listing = recorder.listing()
        return any(job.reason == "Resources" and job.expected_start_at for job in parse_listing(0, listing.text).jobs)

    recorder.until("a planned start", planned)
    recorder.keep("squeue-live", squeue_arguments(recorder.name))
    recorder.keep("squeue-unknown-name", squeue_arguments("no-such-session"))
    cluster = recorder.box.run(["scontrol", "show", "config"]).stdout
    name = next(line.split("=")[1].strip() for line in cluster.splitlines() if line.startswith("ClusterName"))
    recorder.keep("squeue-named-cluster", squeue_arguments(recorder.name, name))
    recorder.keep("squeue-other-cluster", squeue_arguments(recorder.name, "elsewhere"))
    recorder.keep("squeue-with-header", [word for word in squeue_arguments(recorder.name) if word != "-h"])
    recorder.keep("squeue-unknown-field", [*squeue_arguments(recorder.name)[:-1], "JobID:|,NoSuchField:|"])
    recorder.keep("squeue-unknown-option", [*squeue_arguments(recorder.name), "--no-such-option"])
    recorder.keep("squeue-purged-id", ["squeue", "-h", "-j", "4242"])
    recorder.keep("sacct-live", sacct_arguments([running, per_job], None))
    recorder.keep("sbatch-named-cluster", ["sbatch", "--parsable", "-M", name, "-o", "/dev/null", "--wrap=true"])
    recorder.box.cancel_all()


def rare_states(recorder: Recorder) -> None:
    """Suspended, requeued and held, special exit, node not available."""
    box = recorder.box
    suspended, requeued, special = (recorder.submit("-t", "30", "--requeue") for _ in range(3))
    for job_id in (suspended, requeued, special):
        recorder.until_state(job_id, "RUNNING")
    box.run(["scontrol", "suspend", suspended])
    box.run(["scontrol", "requeuehold", requeued])
    box.run(["scontrol", "requeuehold", "State=SpecialExit", special])
    nodes = box.as_user(["sinfo", "-h", "-N", "-p", "gpu-b", "-o", "%N"]).stdout.split()
    box.run(["scontrol", "update", f"NodeName={nodes[0]}", "State=DRAIN", "Reason=recorded, with a comma"])
    owner = f"Users={box.job_user_entry().pw_name}"
    when = ["StartTime=now+60minutes", "Duration=60"]
    box.run(["scontrol", "create", "reservation", "ReservationName=r1", f"Nodes={nodes[1]}", owner, *when])
    unavailable = recorder.submit("-p", "gpu-b", f"--nodelist={nodes[0]}", "-t", "10")
    maintained = recorder.submit("-p", "gpu-b", f"--nodelist={nodes[1]}", "-t", "120")
    held = recorder.submit("-p", "gpu-b", "--reservation=r1", "-t", "10")
    recorder.until_state(held, "PENDING")
    recorder.until_state(requeued, "REQUEUE_HOLD", "PENDING")
    recorder.until_state(special, "SPECIAL_EXIT", "PENDING")
    recorder.until("reasons", lambda: recorder.listing().stdout.count("ReqNodeNotAvail") >= 2)
    assert {unavailable, maintained} <= set(recorder.states())
    recorder.keep("squeue-rare", squeue_arguments(recorder.name))
    box.run(["scontrol", "update", f"NodeName={nodes[0]}", "State=RESUME"])
    box.run(["scontrol", "resume", suspended])
    box.cancel_all()
    box.run(["scontrol", "delete", "ReservationName=r1"])


def ended(recorder: Recorder) -> None:
    """Final states, in the queue and in accounting."""
    completed = recorder.submit(wrap="true")
    failed = recorder.submit(wrap="exit 3")
    cancelled, held = recorder.submit(), recorder.submit("-H")
    recorder.until_state(cancelled, "RUNNING")
    recorder.box.as_user(["scancel", cancelled, held])
    ids = [completed, failed, cancelled, held]
    final = {"COMPLETED", "FAILED", "CANCELLED"}
    recorder.until("four final states", lambda: {recorder.states().get(i) for i in ids} <= final)
    recorder.keep("squeue-ended", squeue_arguments(recorder.name))
    submitted = int(time.time()) - 3600
    question = sacct_arguments(ids, submitted)

    def told() -> bool:
        return sum(recorder.ask(question).stdout.count(word) for word in final) == len(ids)

    recorder.until("four final states in accounting", told)
    recorder.keep("sacct-ended", question)
    recorder.keep("sacct-unknown-id", sacct_arguments(["4242"], submitted))


def submissions(recorder: Recorder) -> None:
    """Acceptance, refusals and estimates."""
    shape = EffectiveShape(partition="gpu-a", gpus_per_node=2, time_limit="00:30:00")

    def options(**changes: Any) -> tuple[str, ...]:
        fields = {**shape.to_json(), **changes}
        return sbatch_arguments(
            EffectiveShape.from_json(fields), job_name="recorded", comment="c", output="/dev/null", test_only=True
        )

    recorder.keep("sbatch-accepted", ["sbatch", *(o for o in options() if o != "--test-only")])
    recorder.keep("estimate", ["sbatch", *options()])
    recorder.keep("estimate-two-nodes", ["sbatch", *options(nodes=2)])
    recorder.keep("estimate-partition-list", ["sbatch", *options(partition="gpu-a,cpu", gpus_per_node=0)])
    recorder.keep("estimate-quiet", ["sbatch", "-Q", *options()])
    refused: dict[str, dict[str, Any]] = {
        "partition": {"partition": "nosuch"},
        "account": {"account": "nosuch"},
        "reservation": {"reservation": "nosuch"},
        "constraint": {"constraint": "nosuch"},
        "gpus": {"gpus_per_node": 99},
    }
    for name, changes in refused.items():
        real = [option for option in options(**changes) if option != "--test-only"]
        recorder.keep(f"sbatch-refused-{name}", ["sbatch", *real])
        recorder.keep(f"estimate-refused-{name}", ["sbatch", *options(**changes)])
    recorder.keep("sbatch-two-memory-forms", ["sbatch", "--mem=1G", "--mem-per-cpu=1G", "--wrap=true"])
    recorder.keep("sbatch-long-comment", ["sbatch", "--comment", "c" * 1100, "--wrap=true"])
    recorder.keep("sbatch-unknown-option", ["sbatch", "--no-such-option", "--wrap=true"])
    recorder.keep("sbatch-missing", ["timeout", "2", "no-such-sbatch"])
    recorder.box.cancel_all()


def outages(recorder: Recorder) -> None:
    """Controller and database dead."""
    recorder.keep("ping", ["scontrol", "ping"])
    with killed(recorder.box, "slurmdbd"):
        recorder.keep("sacct-database-dead", sacct_arguments(["1"], None))
    with killed(recorder.box, "slurmctld"):
        recorder.keep("ping-controller-dead", ["scontrol", "ping"])
        recorder.keep("squeue-controller-dead", squeue_arguments(recorder.name))
        recorder.keep("sbatch-controller-dead", ["sbatch", "--parsable", "--wrap=true"])
        recorder.keep("estimate-controller-dead", ["timeout", "-k", "2", "12", "sbatch", "--test-only", "--wrap=true"])
    recorder.box.stop_daemon("slurmctld")
    try:
        recorder.keep("ping-controller-stopped", ["timeout", "-k", "1", "2", "scontrol", "ping"])
        recorder.keep("squeue-controller-stopped", squeue_arguments(recorder.name))
    finally:
        recorder.box.continue_daemon("slurmctld")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="directory of a running box")
    recorder = Recorder(SlurmBox.attach(parser.parse_args().dir))
    recorder.box.cancel_all()
    for scene in (pending_and_running, rare_states, ended, submissions, outages):
        recorder.name = f"recorded-{os.getpid()}-{scene.__name__}"
        scene(recorder)
        print(f"{scene.__name__}: recorded")


if __name__ == "__main__":
    main()
