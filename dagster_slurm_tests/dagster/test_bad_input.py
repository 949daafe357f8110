"""Wrong settings on a real cluster: one clear error that names the field, and nothing runs afterwards."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import dagster as dg
import pytest

from dagster_slurm import SlurmComputeResource, SlurmHeadOptions, SlurmQueueOptions
from dagster_slurm.errors import (
    AuthenticationFailed,
    ConfigurationError,
    DagsterSlurmError,
    HostKeyRejected,
    HostUnreachable,
    SessionDirectoryUnsafe,
    SlurmCommandsMissing,
    SubmissionRefused,
)
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.cluster.bringup import give_to_job_user
from dagster_slurm_tests.dagster.box_resource import SMALL, jobs_of, resource_on

pytestmark = pytest.mark.integration


@attrs.frozen
class Wrong:
    """One wrong setting.

    Attributes:
        make: Makes the changed fields of the resource; gets the box, a fresh base and a directory of the test.
        error: Class of the error.
        field: Field that it names.
        words: What the message has to contain.
    """

    name: str
    make: Callable[[SlurmBox, Path, Path], dict[str, Any]]
    error: type[DagsterSlurmError]
    field: str
    words: tuple[str, ...]


def new_key(folder: Path) -> str:
    path = folder / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return str(path)


def other_host_key(box: SlurmBox, _: Path, folder: Path) -> dict[str, Any]:
    kind, key = Path(f"{new_key(folder)}.pub").read_text().split()[:2]
    (folder / "known_hosts").write_text(f"[{box.host}]:{box.port} {kind} {key}\n")
    return {"known_hosts": str(folder / "known_hosts")}


def no_host_key(_: SlurmBox, __: Path, folder: Path) -> dict[str, Any]:
    (folder / "known_hosts").write_text("")
    return {"known_hosts": str(folder / "known_hosts")}


def unused_port(*_: object) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"port": probe.getsockname()[1]}


def read_only_base(box: SlurmBox, base: Path, _: Path) -> dict[str, Any]:
    base.chmod(0o500)
    return {}


def linked_base(box: SlurmBox, base: Path, _: Path) -> dict[str, Any]:
    link = base.with_name(f"{base.name}-link")
    link.symlink_to(base)
    os.lchown(link, base.stat().st_uid, base.stat().st_gid)
    return {"remote_base": str(link)}


def foreign_base(_: SlurmBox, base: Path, __: Path) -> dict[str, Any]:
    os.chown(base, 0, 0)
    base.chmod(0o755)
    return {}


def open_base(_: SlurmBox, base: Path, __: Path) -> dict[str, Any]:
    base.chmod(0o777)
    return {}


def without_slurm(box: SlurmBox, base: Path, _: Path) -> dict[str, Any]:
    """A PATH that has everything but Slurm's commands."""
    programs = base / "programs"
    programs.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            link = programs / program.name
            if program.name not in ("sbatch", "squeue", "scancel", "scontrol", "sacct") and not link.is_symlink():
                link.symlink_to(program)
    programs.chmod(0o755)
    give_to_job_user(programs, box.definition)
    return {"remote_setup": f"{box.remote_setup}\nPATH={programs}", "slurm_bin": None}


CASES = (
    Wrong("host", lambda *_: {"host": "no-such-host.invalid"}, HostUnreachable, "host", ("no-such-host.invalid",)),
    Wrong("port", unused_port, HostUnreachable, "host", ("127.0.0.1", "SlurmComputeResource.port")),
    Wrong(
        "key",
        lambda _, __, f: {"key_file": new_key(f)},
        AuthenticationFailed,
        "key_file",
        ("refused the login", "SlurmComputeResource.user"),
    ),
    Wrong(
        "user",
        lambda *_: {"user": "nobody-here"},
        AuthenticationFailed,
        "key_file",
        ("nobody-here", "SlurmComputeResource.user"),
    ),
    Wrong("changed host key", other_host_key, HostKeyRejected, "known_hosts", ("known_hosts",)),
    Wrong("unknown host key", no_host_key, HostKeyRejected, "known_hosts", ("ssh-keyscan",)),
    Wrong(
        "base missing",
        lambda _, base, __: {"remote_base": f"{base}/missing"},
        SessionDirectoryUnsafe,
        "remote_base",
        ("/missing", "does not exist", "mkdir"),
    ),
    Wrong("base not writable", read_only_base, SessionDirectoryUnsafe, "remote_base", ("cannot be written",)),
    Wrong("base is a link", linked_base, SessionDirectoryUnsafe, "remote_base", ("symbolic link",)),
    Wrong("base of another", foreign_base, SessionDirectoryUnsafe, "remote_base", ("belongs to another user",)),
    Wrong("base open to all", open_base, SessionDirectoryUnsafe, "remote_base", ("chmod",)),
    Wrong(
        "no such partition",
        lambda *_: {"queue": SlurmQueueOptions(partition="nowhere")},
        SubmissionRefused,
        "head",
        ("invalid partition", "nothing runs"),
    ),
    Wrong(
        "no such account",
        lambda *_: {"queue": SlurmQueueOptions(partition="cpu", account="nobodys")},
        SubmissionRefused,
        "head",
        ("account", "nothing runs"),
    ),
    Wrong(
        "more GPUs than a node has",
        lambda *_: {
            "queue": SMALL.model_copy(update={"partition": "gpu-a"}),
            "head": SlurmHeadOptions(gpus_per_node=99),
        },
        SubmissionRefused,
        "head",
        ("node configuration is not available", "gpus_per_node"),
    ),
    Wrong(
        "no Ray",
        lambda *_: {"ray_python": "/usr/bin/python3"},
        ConfigurationError,
        "ray_python",
        ("no module named ray", "pip install"),
    ),
    Wrong(
        "no Python",
        lambda *_: {"ray_python": "/no/such/python"},
        ConfigurationError,
        "ray_python",
        ("/no/such/python", "pip install"),
    ),
    Wrong("no Slurm commands", without_slurm, SlurmCommandsMissing, "slurm_bin", ("sbatch", "remote_setup")),
)


@pytest.mark.parametrize("wrong", CASES, ids=lambda case: case.name)
def test_a_wrong_setting_is_one_clear_error_and_nothing_runs(
    box: SlurmBox, fresh_base: Path, tmp_path: Path, wrong: Wrong
) -> None:
    caught: list[DagsterSlurmError] = []

    @dg.asset
    def use(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> None:
        try:
            compute.get_run_allocation_session(context)
        except DagsterSlurmError as error:
            caught.append(error)
            raise

    compute = resource_on(box, fresh_base, **wrong.make(box, fresh_base, tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([use], instance=instance, resources={"compute": compute}, raise_on_error=False)
        assert not result.success
        errors = [
            e for e in instance.all_logs(result.run_id) if e.level >= 40 and "could not be ended" in e.user_message
        ]
        assert errors == []
    (error,) = caught
    text = str(error)
    assert type(error) is wrong.error, text
    assert error.field is not None
    assert wrong.field in error.field
    for word in wrong.words:
        assert word.lower() in text.lower(), text
    assert error.remedy, text
    assert jobs_of(box, result.run_id) == {}
    # What was made for a session whose head was refused is marked as ended, so that nothing starts there later.
    session = fresh_base / "sessions" / result.run_id
    assert not session.exists() or (session / "closing").exists()


def test_a_payload_that_does_not_exist_is_named_before_anything_is_sent(box: SlurmBox, fresh_base: Path) -> None:
    compute = resource_on(box, fresh_base)
    before = box.ssh_command_count()

    @dg.asset
    def use(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
        with pytest.raises(ConfigurationError, match=r"/no/such/payload\.py") as caught:
            compute.run(context=context, payload="/no/such/payload.py")
        assert caught.value.field == "payload"
        return dg.MaterializeResult()

    assert dg.materialize([use], resources={"compute": compute}).success
    assert box.ssh_command_count() == before
    assert list(fresh_base.iterdir()) == []
