"""Command line, labels, environment and private directory of Ray; the addresses it binds to."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dagster_slurm.agent import network
from dagster_slurm.agent.grant import RayShare
from dagster_slurm.agent.raystart import (
    RANDOM_NAME_BYTES,
    RAY_SOCKET_SUFFIX_BYTES,
    SOCKET_PATH_BYTES,
    START_NAME_BYTES,
    installed_ray_version,
    label_value,
    lock,
    log_tails,
    make_private_directory,
    node_labels,
    private_parent,
    ray_command,
    ray_environment,
    remove_left_over_directories,
)

SHARE = RayShare(cpus=4, gpus=2, memory_bytes=1000, object_store_bytes=500)


def command(**changes: Any) -> list[str]:
    arguments: dict[str, Any] = {
        "head_address": None,
        "node_ip": "10.0.0.5",
        "temp_dir": "/tmp/ds/r1",
        "share": SHARE,
        "labels": {"dagster-slurm/job": "12", "dagster-slurm/node": "n1"},
        "resources": {},
        "client_port": 4711,
        "extra": (),
    }
    return ray_command("/opt/python", **{**arguments, **changes})


def test_a_heads_command_line() -> None:
    words = command()
    assert words[0] == "/opt/python"
    for word in (
        "--head",
        "--block",
        "--port=0",
        "--include-dashboard=false",
        "--node-ip-address=10.0.0.5",
        "--temp-dir=/tmp/ds/r1",
        "--num-cpus=4",
        "--num-gpus=2",
        "--memory=1000",
        "--object-store-memory=500",
        "--labels=dagster-slurm/job=12,dagster-slurm/node=n1",
        "--ray-client-server-port=4711",
    ):
        assert word in words
    assert not any(word.startswith("--address") for word in words)


def test_O_8_a_workers_command_line_fixes_no_port() -> None:
    words = command(head_address="10.0.0.1:6379", client_port=None)
    assert "--address=10.0.0.1:6379" in words
    assert "--head" not in words
    ports = [word for word in words if word.startswith("--") and "port" in word]
    assert ports == ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]


def test_a_head_without_the_client_server_gets_no_port_for_it() -> None:
    assert not any("client" in word for word in command(client_port=None))


def test_resources_and_the_users_options_come_last() -> None:
    words = command(resources={"licence": 2.0}, extra=("--num-cpus=1", "--verbose"))
    assert words[-3:] == ['--resources={"licence": 2.0}', "--num-cpus=1", "--verbose"]


def test_ray_takes_the_token_from_the_session_and_nothing_from_the_step() -> None:
    environ = ray_environment({"SLURM_JOB_ID": "1", "RAY_AUTH_TOKEN": "x", "PATH": "/bin"}, "/s/ray.token")
    assert environ["RAY_AUTH_MODE"] == "token"
    assert environ["RAY_AUTH_TOKEN_PATH"] == "/s/ray.token"
    assert environ["PATH"] == "/bin"
    assert not {"SLURM_JOB_ID", "RAY_AUTH_TOKEN"} & set(environ)


@pytest.mark.parametrize("text", ["batch", "a.b-c_d", "1", "x" * 63])
def test_a_label_that_ray_allows_stays_as_it_is(text: str) -> None:
    assert label_value(text) == text


@pytest.mark.parametrize("text", ["gpu helpers", "team/asset", "-x", "x" * 64, "ü", "a,b=c", ""])
def test_any_other_text_becomes_a_distinct_label_that_ray_allows(text: str) -> None:
    value = label_value(text)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)
    assert value != label_value(text + "!")


def test_labels_of_a_node() -> None:
    labels = node_labels("12", "n1", "team/asset", "99.1")
    assert labels["dagster-slurm/job"] == "12"
    assert labels["dagster-slurm/node"] == "n1"
    assert labels["dagster-slurm/instance"] == "99.1"
    assert labels["dagster-slurm/intent"].startswith("team-asset-")
    assert "dagster-slurm/intent" not in node_labels("12", "n1", None, "99.1")


def test_the_private_directory_is_only_ours_and_short_enough(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    directory = make_private_directory({"TMPDIR": str(long)}, "1234567")
    try:
        assert not directory.startswith(str(long))
        assert os.path.basename(directory).startswith("ds-1234567-")
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert len(directory) + len("/r9") + RAY_SOCKET_SUFFIX_BYTES <= SOCKET_PATH_BYTES
    finally:
        shutil.rmtree(directory)


def test_only_what_a_killed_agent_left_is_removed(tmp_path: Path) -> None:
    for name in ("ds-1-aaaaaaaa", "ds-2-bbbbbbbb", "ds-3-cccccccc", "ds-4-dddddddd", "ds-x-eeeeeeee"):
        (tmp_path / name).mkdir()
        if name != "ds-4-dddddddd":
            (tmp_path / name / "lock").touch()
    # A second descriptor is refused the lock even within one process.
    held = lock(str(tmp_path / "ds-2-bbbbbbbb" / "lock"))
    assert held is not None
    try:
        for path in tmp_path.iterdir():
            if path.name != "ds-3-cccccccc":
                os.utime(path, (0, 0))
        remove_left_over_directories(str(tmp_path))
        # Held, young, without a lock, and not ours by its name: all these stay.
        assert sorted(path.name[:4] for path in tmp_path.iterdir()) == ["ds-2", "ds-3", "ds-4", "ds-x"]
    finally:
        os.close(held)


def test_a_users_directory_is_taken_when_it_is_just_short_enough(tmp_path: Path) -> None:
    rest = len("/ds-1-") + RANDOM_NAME_BYTES + START_NAME_BYTES + RAY_SOCKET_SUFFIX_BYTES
    fits, too_long = ("/tmp/" + "x" * (SOCKET_PATH_BYTES - rest - len("/tmp/") + more) for more in (0, 1))
    for path in (fits, too_long):
        os.mkdir(path)
    try:
        assert private_parent([fits, "/tmp"], "ds-1-") == fits
        assert private_parent([too_long, "/tmp"], "ds-1-") == "/tmp"
    finally:
        for path in (fits, too_long):
            os.rmdir(path)


def test_the_longest_names_fit_into_what_is_reserved_for_them() -> None:
    assert len("abcdefgh") == RANDOM_NAME_BYTES
    assert len("/r9") == START_NAME_BYTES
    assert len("/session_2026-12-01_11-48-08_808162_4194304/sockets/plasma_store") <= RAY_SOCKET_SUFFIX_BYTES


def test_directories_that_cannot_be_used_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert private_parent([None, "", "relative", "/nowhere", "/etc/hostname", "/tmp"], "ds-1-") == "/tmp"
    assert private_parent(["/nowhere"], "ds-1-") is None


def test_log_tails_hold_the_last_lines(tmp_path: Path) -> None:
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.err").write_text("\n".join(str(number) for number in range(100)))
    text = log_tails(str(tmp_path), lines=2)
    assert text == "--- raylet.err\n98\n99"
    (logs / "raylet.err").write_text("why\n/opt/raylet(+0x699188) [0x562a05114188] std::function<>()\n\n")
    assert log_tails(str(tmp_path)) == "--- raylet.err\nwhy"
    assert log_tails(str(tmp_path / "nothing")) == ""


def test_the_installed_ray_is_known() -> None:
    import ray

    assert installed_ray_version() == ray.__version__


@pytest.mark.parametrize(
    ("override", "toward_head", "named", "default_route", "expected"),
    [
        ("10.9.9.9", "10.0.0.2", ["10.0.0.3"], "10.0.0.4", "10.9.9.9"),
        (None, "10.0.0.2", ["10.0.0.3"], "10.0.0.4", "10.0.0.2"),
        (None, None, ["127.0.1.1", "10.0.0.3"], "10.0.0.4", "10.0.0.3"),
        (None, None, ["127.0.1.1"], "10.0.0.4", "10.0.0.4"),
        (None, None, [], None, "127.0.0.1"),
    ],
)
def test_O_3_a_node_is_never_published_under_a_loopback_name_while_it_has_a_network(
    override: str | None, toward_head: str | None, named: list[str], default_route: str | None, expected: str
) -> None:
    assert network.choose_address(override, toward_head, named, default_route) == expected


def test_a_worker_beside_its_head_uses_the_heads_address() -> None:
    assert network.node_address(None, "n1", "127.0.0.1") == "127.0.0.1"


def test_the_chosen_address_belongs_to_this_machine() -> None:
    assert network.is_local(network.node_address(None, "no-such-host.invalid", None))
    assert not network.is_local("198.51.100.7")


def test_a_name_that_does_not_resolve_has_no_addresses() -> None:
    assert network.local_addresses_of("no-such-host.invalid") == []


@pytest.mark.parametrize(("address", "host"), [("10.0.0.1:6379", "10.0.0.1"), ("[fd00::2]:6379", "fd00::2")])
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert network.host_of(address) == host


def test_an_interface_has_an_address_or_none() -> None:
    assert network.interface_address("lo") == "127.0.0.1"
    assert network.interface_address("nope0") is None
    assert network.interface_address("a-name-that-is-far-too-long-for-linux") is None
