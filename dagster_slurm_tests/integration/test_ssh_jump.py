"""Through jump hosts, with real sshds: the way in, and every way in which it can fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from dagster_slurm.errors import AuthenticationFailed, HostKeyRejected, HostUnreachable, ReplyIncomplete
from dagster_slurm.remote.ssh import SshAddress
from dagster_slurm.remote.ssh_config import Login as Stated
from dagster_slurm.remote.ssh_config import address_of
from dagster_slurm_tests.integration.loopback import Login, Sshd, free_port, make_key, relay, shell_to, sshd, wait_until


@pytest.fixture(scope="module")
def gate(login: Login) -> Iterator[Sshd]:
    with sshd(login) as running:
        yield running


@pytest.fixture(scope="module")
def target(login: Login) -> Iterator[Sshd]:
    with sshd(login) as running:
        yield running


def behind(gate: Sshd, target: Sshd, **changes: object) -> SshAddress:
    """The target, through the gate."""
    return target.address(through=(gate.address(),), **changes)


def test_scripts_run_behind_a_jump_host_over_one_connection(gate: Sshd, target: Sshd) -> None:
    before = (gate.logins(), target.logins())
    with shell_to(behind(gate, target)) as shell:
        for _ in range(3):
            assert shell.run("section port printenv SSH_CONNECTION").sections[0].text.split()[3] == str(target.port)
        big = "x" * 3_000_000
        assert shell.run(f"big={big}\nemit size 0 ${{#big}}").sections[0].text == "3000000"
    assert (gate.logins(), target.logins()) == (before[0] + 1, before[1] + 1)
    wait_until(lambda: gate.logged("Connection closed by") + gate.logged("Received disconnect from") > 0)


def test_two_jump_hosts_and_the_users_configuration(
    gate: Sshd, target: Sshd, login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd(login) as second:
        known = tmp_path / "known"
        known.write_text("".join(Path(s.known_hosts()).read_text() for s in (gate, second, target)))
        config = tmp_path / "config"
        config.write_text(
            f"Host *\n  User {login.user}\n  HostName 127.0.0.1\n  IdentityFile {login.key_file}\n"
            f"  UserKnownHostsFile {known}\n"
            f"Host site\n  Port {target.port}\n  ProxyJump gate,second\n"
            f"Host gate\n  Port {gate.port}\nHost second\n  Port {second.port}\n"
        )
        before = second.logins()
        with shell_to(address_of(Stated(host="site", config_file=str(config)))) as shell:
            assert shell.run("section who id -un").sections[0].text == f"{login.user}\n"
        assert second.logins() == before + 1


def test_a_lost_jump_host_is_a_lost_reply_and_the_next_run_connects_again(gate: Sshd, target: Sshd) -> None:
    with relay(gate.port) as way:
        hop = attrs.evolve(gate.address(), port=way.port, known_hosts=gate.known_hosts(way.port))
        with shell_to(target.address(through=(hop,))) as shell:
            assert shell.run("section t true").complete
            breaking = threading.Timer(0.5, way.break_all)
            breaking.start()
            with pytest.raises(ReplyIncomplete):
                shell.run("section begun true\nsleep 20", timeout_seconds=30)
            breaking.join()
            assert shell.run("section t true").complete
            assert way.connections == 2


def test_a_network_that_went_silent_below_is_noticed_and_replaced(gate: Sshd, target: Sshd) -> None:
    with relay(gate.port) as way:
        hop = attrs.evolve(gate.address(), port=way.port, known_hosts=gate.known_hosts(way.port))
        with shell_to(target.address(through=(hop,), connect_timeout_seconds=2.0)) as shell:
            assert shell.run("section t true").complete
            way.go_silent()
            assert shell.run("section t true", timeout_seconds=20).complete
            assert way.connections == 2


def test_the_key_of_each_station_is_checked(gate: Sshd, target: Sshd, tmp_path: Path) -> None:
    nothing = tmp_path / "none"
    nothing.write_text("")
    unknown_gate = attrs.evolve(gate.address(), known_hosts=str(nothing))
    before = target.logins()
    with shell_to(target.address(through=(unknown_gate,))) as shell, pytest.raises(HostKeyRejected) as caught:
        shell.run("section t true")
    assert str(gate.port) in caught.value.message
    with shell_to(behind(gate, target, known_hosts=str(nothing))) as shell, pytest.raises(HostKeyRejected) as caught:
        shell.run("section t true")
    assert str(target.port) in caught.value.message
    assert target.logins() == before


def test_a_jump_host_that_refuses_says_so(gate: Sshd, target: Sshd, login: Login, tmp_path: Path) -> None:
    stranger = attrs.evolve(gate.address(), key_file=str(make_key(tmp_path / "other")))
    with shell_to(target.address(through=(stranger,))) as shell, pytest.raises(AuthenticationFailed) as refused:
        shell.run("section t true")
    assert f":{gate.port}" in refused.value.message
    closed = free_port()
    nowhere = target.address(port=closed, known_hosts=target.known_hosts(closed), through=(gate.address(),))
    with shell_to(nowhere) as shell, pytest.raises(HostUnreachable, match="The jump host does not connect") as caught:
        shell.run("section t true")
    assert caught.value.field == "SlurmComputeResource.proxy_jump"
    with (
        sshd(login, "AllowTcpForwarding no") as strict,
        shell_to(behind(strict, target)) as shell,
        pytest.raises(HostUnreachable, match="The jump host does not connect"),
    ):
        shell.run("section t true")
