"""The SSH shell against a real sshd on the loopback interface."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_slurm.errors import (
    AuthenticationFailed,
    ConfigurationError,
    HostKeyRejected,
    HostUnreachable,
    RemoteTimeout,
    ReplyIncomplete,
)
from dagster_slurm.remote import ssh, ssh_login
from dagster_slurm_tests.cluster.packages import install
from dagster_slurm_tests.integration.loopback import (
    KEY_TYPES,
    Login,
    Sshd,
    free_port,
    make_key,
    relay,
    shell_to,
    sshd,
    wait_until,
)


@pytest.fixture(scope="module")
def server(login: Login) -> Iterator[Sshd]:
    with sshd(login) as running:
        yield running


@pytest.fixture
def shared(login: Login, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the remote user can write to."""
    path = login.directory / tmp_path_factory.mktemp("shared").name
    path.mkdir(exist_ok=True)
    return login.own(path)


def test_one_connection_serves_many_runs(server: Sshd) -> None:
    before = server.logins()
    with shell_to(server.address(), "NAME=world; export NAME", "/opt/slurm/bin") as shell:
        assert shell.round_trips == 0
        reply = shell.run('section who id -un\nsection name printenv NAME\nemit path 0 "${PATH%%:*}"')
        assert reply.complete
        assert [section.text for section in reply.sections] == [f"{server.login.user}\n", "world\n", "/opt/slurm/bin"]
        for _ in range(20):
            assert shell.run("section t true").complete
        assert shell.round_trips == 21
        assert shell.address == f"{server.login.user}@127.0.0.1:{server.port}"
    assert server.logins() == before + 1


def test_small_packets_are_not_held_back(server: Sshd) -> None:
    with shell_to(server.address()) as shell:
        shell.run("section t true")
        assert shell._connection is not None
        sock = shell._connection.transport.sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_M_4_a_long_home_is_no_obstacle(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Connections are kept in this process: there is no control socket whose path could be too long.
    home = tmp_path / ("h" * 180)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    with shell_to(server.address()) as shell:
        assert all(shell.run("section t true").complete for _ in range(2))
    assert list(home.iterdir()) == []


def test_M_7_an_unknown_key_is_refused_before_anything_is_sent(server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    before = server.logged("userauth-request")
    with (
        shell_to(server.address(known_hosts=str(tmp_path / "known_hosts"))) as shell,
        pytest.raises(HostKeyRejected, match=r"not recorded.*ssh-ed25519 SHA256:") as caught,
    ):
        shell.run("section t true")
    printed = subprocess.run(
        ["ssh-keygen", "-l", "-f", server.login.host_keys["ed25519"]], capture_output=True, check=True, text=True
    )
    assert printed.stdout.split()[1] in str(caught.value)
    assert caught.value.field == "SlurmComputeResource.known_hosts"
    assert "SlurmComputeResource.host" in str(caught.value)
    assert server.logged("userauth-request") == before


def test_M_7_a_changed_key_is_refused_before_anything_is_sent(server: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    key = (tmp_path / "other.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {key}")
    before = server.logged("userauth-request")
    with shell_to(server.address(known_hosts=str(tmp_path / "known_hosts"))) as shell:
        with pytest.raises(HostKeyRejected, match="not the recorded one"):
            shell.run("section t true")
        assert shell.round_trips == 0
    assert server.logged("userauth-request") == before


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("hashed", [False, True])
def test_M_7_one_recorded_key_type_is_enough(server: Sshd, key_type: str, hashed: bool) -> None:
    path = server.known_hosts(key_types=(key_type,))
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    with shell_to(server.address(known_hosts=path)) as shell:
        assert shell.run("section t true").complete


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("passphrase", ["", "open sesame"])
@pytest.mark.parametrize("file_format", ["RFC4716", "PEM"])
def test_private_keys_of_every_kind(
    server: Sshd, tmp_path: Path, key_type: str, passphrase: str, file_format: str
) -> None:
    key = make_key(tmp_path / "key", key_type, passphrase, "-m", file_format)
    with server.login.authorized_keys.open("a") as stream:
        stream.write((tmp_path / "key.pub").read_text())
    with shell_to(server.address(key_file=str(key), passphrase=passphrase or None)) as shell:
        assert shell.run("section t true").complete
    if passphrase:
        with shell_to(server.address(key_file=str(key))) as shell:
            with pytest.raises(ConfigurationError, match="encrypted") as caught:
                shell.run("section t true")
            assert caught.value.field == "SlurmComputeResource.passphrase"
        with (
            shell_to(server.address(key_file=str(key), passphrase="wrong")) as shell,
            pytest.raises(ConfigurationError, match="passphrase is wrong"),
        ):
            shell.run("section t true")


def test_a_key_with_a_certificate(login: Login, tmp_path: Path) -> None:
    authority, key = make_key(tmp_path / "ca"), make_key(tmp_path / "key")
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "t", "-n", login.user, f"{key}.pub"], check=True)
    with (
        sshd(login, f"TrustedUserCAKeys {authority}.pub") as server,
        shell_to(server.address(key_file=str(key))) as shell,
    ):
        assert shell.run("section t true").complete


@pytest.mark.parametrize("content", [None, "not a key\n"])
def test_a_key_file_that_cannot_be_used_costs_no_connection(server: Sshd, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with (
        shell_to(server.address(key_file=str(tmp_path / "key"), port=free_port())) as shell,
        pytest.raises(ConfigurationError, match=str(tmp_path / "key")) as caught,
    ):
        shell.run("section t true")
    assert caught.value.field == "SlurmComputeResource.key_file"


def test_a_wrong_key_is_an_authentication_failure(server: Sshd, tmp_path: Path) -> None:
    with (
        shell_to(server.address(key_file=str(make_key(tmp_path / "key")))) as shell,
        pytest.raises(AuthenticationFailed, match="refused the login") as caught,
    ):
        shell.run("section t true")
    assert caught.value.field == "SlurmComputeResource.key_file"


def test_the_agent_and_the_usual_files(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    address = server.address(key_file=None)
    with shell_to(address) as shell, pytest.raises(AuthenticationFailed, match="no key and no password"):
        shell.run("section t true")
    agent_socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", agent_socket], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.exists(agent_socket))
        monkeypatch.setenv("SSH_AUTH_SOCK", agent_socket)
        subprocess.run(["ssh-add", "-q", server.login.key_file], check=True)
        with shell_to(address) as shell:
            assert shell.run("section t true").complete
    finally:
        agent.terminate()
        agent.wait(20)
    monkeypatch.delenv("SSH_AUTH_SOCK")
    shutil.copy(server.login.key_file, home / ".ssh" / "id_ed25519")
    with shell_to(address) as shell:
        assert shell.run("section t true").complete


def test_password_alone_and_as_second_factor(server: Sshd, login: Login) -> None:
    with shell_to(server.address(key_file=None, password=login.password)) as shell:
        assert shell.run("section t true").complete
    with shell_to(server.address(key_file=None, password="wrong")) as shell:
        with pytest.raises(AuthenticationFailed) as caught:
            shell.run("section t true")
        assert caught.value.field == "SlurmComputeResource.password"
        assert "wrong" not in str(caught.value) + repr(shell._target)
    with sshd(login, "AuthenticationMethods publickey,password") as strict:
        with shell_to(strict.address(password=login.password)) as shell:
            assert shell.run("section t true").complete
        with (
            shell_to(strict.address()) as shell,
            pytest.raises(AuthenticationFailed, match="one more step: password"),
        ):
            shell.run("section t true")


def test_nobody_listens(server: Sshd) -> None:
    with (
        shell_to(server.address(port=free_port())) as shell,
        pytest.raises(HostUnreachable, match="refused") as caught,
    ):
        shell.run("section t true")
    assert "SlurmComputeResource.port" in str(caught.value)


def test_a_name_without_address(server: Sshd) -> None:
    with (
        shell_to(server.address(host="login.nowhere.invalid")) as shell,
        pytest.raises(HostUnreachable, match=r"login\.nowhere\.invalid cannot be resolved") as caught,
    ):
        shell.run("section t true")
    assert caught.value.field == "SlurmComputeResource.host"


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_the_port_of_another_service(server: Sshd, says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        with (
            shell_to(server.address(port=listener.getsockname()[1])) as shell,
            pytest.raises(HostUnreachable, match="did not complete an SSH handshake") as caught,
        ):
            shell.run("section t true")
        listener.shutdown(socket.SHUT_RDWR)
    assert caught.value.field == "SlurmComputeResource.port"


def test_M_2_a_port_that_accepts_and_says_nothing(server: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = server.address(port=listener.getsockname()[1], connect_timeout_seconds=1.0)
        started = time.monotonic()
        with shell_to(address) as shell, pytest.raises(HostUnreachable):
            shell.run("section t true")
        assert time.monotonic() - started < 15


@pytest.mark.parametrize(("turned_away", "reaches"), [(2, True), (3, False)])
def test_a_host_that_turns_newcomers_away_is_asked_again_a_few_times(
    server: Sshd, turned_away: int, reaches: bool
) -> None:
    with relay(server.port, turned_away) as between, shell_to(server.address(port=between.port)) as shell:
        if reaches:
            assert shell.run("section t true").complete
        else:
            with pytest.raises(HostUnreachable, match="did not complete an SSH handshake"):
                shell.run("section t true")
        assert between.connections == 3


@pytest.mark.parametrize("login_shell", ["/bin/bash", "/usr/bin/csh"])
def test_M_6_banners_and_noisy_login_shells(login: Login, tmp_path: Path, login_shell: str) -> None:
    if not os.path.exists(login_shell):
        install(["csh"])
    banner = tmp_path / "banner"
    banner.write_text("* 4242|RUNNING *\n")
    for name in (".bashrc", ".cshrc"):
        (login.home / name).write_text("echo Welcome; echo to login1; echo '4242|RUNNING'\n")
        login.own(login.home / name)
    login.set_shell(login_shell)
    try:
        with sshd(login, f"Banner {banner}") as server, shell_to(server.address()) as shell:
            reply = shell.run("section jobs echo '7|PENDING'")
            large = shell.run(f"emit large 0 '{'x' * 300_000}'")
    finally:
        login.set_shell("/bin/sh")
        for name in (".bashrc", ".cshrc"):
            (login.home / name).unlink()
    assert [(section.name, section.text) for section in reply.sections] == [("jobs", "7|PENDING\n")]
    assert reply.complete
    assert large.complete
    assert reply.noise == "Welcome\nto login1\n4242|RUNNING"


@pytest.mark.parametrize("login_shell", ["/usr/sbin/nologin", "/bin/true"])
def test_a_login_shell_that_runs_nothing_answers_nothing(login: Login, server: Sshd, login_shell: str) -> None:
    login.set_shell(login_shell)
    try:
        with shell_to(server.address()) as shell:
            reply = shell.run(f"section t true\n: {'x' * 5_000_000}")
    finally:
        login.set_shell("/bin/sh")
    assert (reply.sections, reply.complete) == ((), False)


def test_M_1_one_session_at_a_time_is_queued(login: Login) -> None:
    with sshd(login, "MaxSessions 1") as server, shell_to(server.address()) as shell:
        with ThreadPoolExecutor(5) as pool:
            replies = list(pool.map(lambda n: shell.run(f"sleep 0.05\nsection t echo {n}"), range(15)))
        assert [reply.sections[0].text for reply in replies] == [f"{n}\n" for n in range(15)]
        assert server.logins() == 1


def test_M_1_no_session_at_all_is_said(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_REFUSED_SECONDS", 0.3)
    with sshd(login, "MaxSessions 0") as server, shell_to(server.address()) as shell:
        with pytest.raises(HostUnreachable, match="refuses to start a session"):
            shell.run("section t true")
        assert shell.round_trips == 0


def test_M_1_many_threads_share_one_connection(server: Sshd) -> None:
    before = server.logins()
    with shell_to(server.address()) as shell:
        barrier = threading.Barrier(5)

        def work(number: int) -> list[str]:
            barrier.wait(30)
            replies = [shell.run(f"section t echo {number}.{turn}") for turn in range(5)]
            return [reply.sections[0].text for reply in replies]

        with ThreadPoolExecutor(5) as pool:
            results = list(pool.map(work, range(5)))
        assert results == [[f"{number}.{turn}\n" for turn in range(5)] for number in range(5)]
        assert shell.round_trips == 25
    assert server.logins() == before + 1


def test_M_1_waiting_for_a_slot_counts_against_the_limit(server: Sshd, shared: Path) -> None:
    with shell_to(server.address()) as shell, ThreadPoolExecutor(ssh.CHANNEL_LIMIT) as pool:
        body = f"echo >>{shared}/started\nwhile [ ! -e {shared}/go ]; do sleep 0.05; done\nsection t true"
        running = [pool.submit(shell.run, body) for _ in range(ssh.CHANNEL_LIMIT)]
        started = shared / "started"
        wait_until(lambda: started.exists() and len(started.read_text()) == ssh.CHANNEL_LIMIT)
        with pytest.raises(RemoteTimeout, match="nothing was run"):
            shell.run("section t true", timeout_seconds=0.3)
        (shared / "go").touch()
        assert all(future.result().complete for future in running)


def test_a_kept_connection_found_broken_is_replaced(server: Sshd) -> None:
    with relay(server.port) as between, shell_to(server.address(port=between.port)) as shell:
        assert shell.run("section t true").complete
        between.break_all()
        assert shell.run("section t true").complete
        assert between.connections == 2
        assert shell.round_trips == 2


def test_M_2_a_kept_connection_that_died_silently_is_replaced(server: Sshd) -> None:
    address_changes = {"connect_timeout_seconds": 5.0}
    with (
        relay(server.port) as between,
        shell_to(server.address(port=between.port, **address_changes)) as shell,
    ):
        assert shell.run("section t true").complete
        between.go_silent()
        assert shell.run("section t true", timeout_seconds=60).complete
        assert between.connections == 2


def test_a_connection_lost_during_a_script_is_not_repeated(server: Sshd, shared: Path) -> None:
    with relay(server.port) as between, shell_to(server.address(port=between.port)) as shell:
        body = f"section early true\necho >>{shared}/runs\nwhile [ ! -e {shared}/go ]; do sleep 0.05; done"
        threading.Thread(target=lambda: (wait_until((shared / "runs").exists), between.break_all())).start()
        with pytest.raises(ReplyIncomplete, match="unknown; 1 sections"):
            shell.run(body)
        (shared / "go").touch()
        assert (shared / "runs").read_text() == "\n"
        assert shell.run("section t true").complete
        assert between.connections == 2


def test_M_2_a_network_that_vanishes_during_a_script_ends_at_the_limit(server: Sshd, shared: Path) -> None:
    with relay(server.port) as between, shell_to(server.address(port=between.port)) as shell:
        threading.Thread(target=lambda: (wait_until((shared / "runs").exists), between.go_silent())).start()
        started = time.monotonic()
        with pytest.raises(RemoteTimeout, match="unknown"):
            shell.run(f"echo >>{shared}/runs\nsleep 600", timeout_seconds=3)
        assert 3 <= time.monotonic() - started < 15
        assert shell.run("section t true").complete
        assert between.connections == 2


def test_M_2_a_network_that_vanishes_while_sending_ends_at_the_limit(server: Sshd, shared: Path) -> None:
    with relay(server.port) as between, shell_to(server.address(port=between.port)) as shell:
        assert shell.run("section t true").complete
        opened = ssh_login.paramiko.Transport.open_session

        def open_then_lose(transport: object, **options: float) -> object:
            channel = opened(transport, **options)
            execute = channel.exec_command

            def execute_then_lose(command: str) -> None:
                execute(command)
                between.go_silent()

            channel.exec_command = execute_then_lose
            return channel

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ssh_login.paramiko.Transport, "open_session", open_then_lose)
            started = time.monotonic()
            with pytest.raises(RemoteTimeout):
                shell.run(f": {'x' * (32 << 20)}\n: >{shared}/ran", timeout_seconds=3)
            assert 3 <= time.monotonic() - started < 15
        assert not (shared / "ran").exists()
        assert shell.run("section t true").complete


def test_a_slow_script_ends_at_the_limit_and_disturbs_no_other(server: Sshd, shared: Path) -> None:
    before = server.logins()
    with shell_to(server.address()) as shell, ThreadPoolExecutor(1) as pool:
        other = pool.submit(
            shell.run, f": >{shared}/started\nwhile [ ! -e {shared}/go ]; do sleep 0.05; done\nsection t echo fine"
        )
        wait_until((shared / "started").exists)
        with pytest.raises(RemoteTimeout):
            shell.run("section early true\nsleep 600", timeout_seconds=1)
        assert shell.run("section t true").complete
        (shared / "go").touch()
        assert other.result().sections[0].text == "fine\n"
    assert server.logins() == before + 2


def test_large_script_and_large_reply(server: Sshd) -> None:
    with shell_to(server.address(), "head -c 3000000 /dev/zero | tr '\\0' n") as shell:
        body = f"section out sh -c 'yes 0123456789abcde | head -c 16000000'\nv='{'x' * (32 << 20)}'\nemit n 0 ${{#v}}"
        reply = shell.run(body, timeout_seconds=120)
    assert reply.complete
    assert reply.sections[0].body == b"0123456789abcde\n" * 1_000_000
    assert reply.sections[1].text == str(32 << 20)


def test_an_early_end_is_returned_and_a_background_process_does_not_hold_the_reply(server: Sshd) -> None:
    with shell_to(server.address()) as shell:
        reply = shell.run("section one true\necho why >&2\nexit 7\nsection two true")
        assert ([section.name for section in reply.sections], reply.complete) == (["one"], False)
        assert reply.noise == "why"
        held = shell.run("sleep 600 & echo $! >&2\nsection t true", timeout_seconds=120)
        assert held.complete
        assert shell.run(f"kill {int(held.noise)}").complete


class Interrupted(BaseException):
    pass


def test_an_interrupt_leaves_a_usable_shell(server: Sshd, shared: Path) -> None:
    def handler(number: int, frame: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with shell_to(server.address()) as shell:
            threading.Thread(
                target=lambda: (wait_until((shared / "started").exists), os.kill(os.getpid(), signal.SIGUSR1))
            ).start()
            with pytest.raises(Interrupted):
                shell.run(f": >{shared}/started\nwhile [ ! -e {shared}/go ]; do sleep 0.05; done")
            (shared / "go").touch()
            assert shell.run("section t true").complete
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_forked_process_opens_its_own_connection(server: Sshd) -> None:
    before = server.logins()
    with shell_to(server.address()) as shell:
        assert shell.run("section t true").complete
        # A thread that holds the lock at the moment of the fork must not block the child.
        with shell._state, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            answered = False
            try:
                answered = shell.run("section t echo child", timeout_seconds=30).complete
                shell.close()
            finally:
                os._exit(0 if answered else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert shell.run("section t true").complete
    assert server.logins() == before + 2


def test_a_closed_shell_opens_again(server: Sshd) -> None:
    with shell_to(server.address()) as shell:
        shell.close()
        assert shell.run("section t true").complete
        shell.close()
        shell.close()
        assert shell.run("section t true").complete


def test_the_default_known_hosts_file(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    address = server.address(known_hosts=None)
    with shell_to(address) as shell, pytest.raises(HostKeyRejected, match=r"~/\.ssh/known_hosts"):
        shell.run("section t true")
    shutil.copy(server.known_hosts(), tmp_path / ".ssh" / "known_hosts")
    with shell_to(address) as shell:
        assert shell.run("section t true").complete
