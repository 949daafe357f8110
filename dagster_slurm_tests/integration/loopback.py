"""A real sshd on the loopback interface, a user to log in as, and a relay that can lose the network."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_slurm.remote.ssh import SshAddress, SshShell

KEY_TYPES = ("ed25519", "ecdsa", "rsa")


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until it holds; fail after the bound."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def make_key(path: Path, key_type: str = "ed25519", passphrase: str = "", *options: str) -> Path:
    """A private key file, with its .pub beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", key_type, "-N", passphrase, "-f", path, *options], check=True)
    return path


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Login:
    """A user of this machine with a home, a key and a password, and the keys of a host. Removed at the end."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="loopback-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.user = f"lb{os.getpid()}"
        self.home = self.directory / "home"
        self.password = "loopback only"
        subprocess.run(["useradd", "-m", "-d", self.home, "-s", "/bin/sh", self.user], check=True)
        subprocess.run(["chpasswd"], input=f"{self.user}:{self.password}".encode(), check=True)
        self.key_file = make_key(self.directory / "key")
        self.host_keys = {name: make_key(self.directory / f"host_{name}", name) for name in KEY_TYPES}
        self.authorized_keys = self.directory / "authorized_keys"
        self.authorized_keys.write_text((self.directory / "key.pub").read_text())

    def set_shell(self, shell: str) -> None:
        """Change the login shell."""
        subprocess.run(["usermod", "-s", shell, self.user], check=True)

    def own(self, path: Path) -> Path:
        """Give an existing path to the user."""
        entry = pwd.getpwnam(self.user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
        return path

    def remove(self) -> None:
        """Delete the user and the files."""
        subprocess.run(["userdel", "-f", self.user], check=True, capture_output=True)
        shutil.rmtree(self.directory)


class Sshd:
    """A running sshd; see ``sshd``."""

    def __init__(self, login: Login, lines: tuple[str, ...]) -> None:
        self.login = login
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(dir=login.directory))
        self.log = self.directory / "log"
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.directory / "config"
        settings = [
            *lines,
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(f"HostKey {path}" for path in login.host_keys.values()),
            f"AuthorizedKeysFile {login.authorized_keys}",
            "StrictModes no",
            "UsePAM no",
            "PrintMotd no",
            f"PidFile {self.directory / 'pid'}",
            "LogLevel DEBUG1",
        ]
        config.write_text("\n".join(settings) + "\n")
        self._process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", config, "-E", self.log])
        wait_until(self._listens)

    def _listens(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def logged(self, text: str) -> int:
        """How often a text stands in the log."""
        return self.log.read_text().count(text)

    def logins(self) -> int:
        """Successful logins so far."""
        return self.logged("Accepted publickey for") + self.logged("Accepted password for")

    def known_hosts(self, port: int | None = None, key_types: tuple[str, ...] = KEY_TYPES) -> str:
        """A file that records the host's keys of these types for a port."""
        path = Path(tempfile.mkstemp(dir=self.directory)[1])
        for name in key_types:
            key = (self.login.directory / f"host_{name}.pub").read_text().rsplit(" ", 1)[0]
            with path.open("a") as stream:
                stream.write(f"[127.0.0.1]:{port or self.port} {key}\n")
        return str(path)

    def address(self, **changes: object) -> SshAddress:
        """Where to log in, with the right key unless changed."""
        port = changes.get("port", self.port)
        assert isinstance(port, int)
        values: dict[str, object] = {
            "host": "127.0.0.1",
            "port": port,
            "user": self.login.user,
            "key_file": str(self.login.key_file),
            "known_hosts": self.known_hosts(port),
        }
        return SshAddress(**(values | changes))  # type: ignore[arg-type]

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)


@contextlib.contextmanager
def sshd(login: Login, *lines: str) -> Iterator[Sshd]:
    """An sshd of its own, with these lines in front of its configuration."""
    server = Sshd(login, lines)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def shell_to(address: SshAddress, remote_setup: str = "", slurm_bin: str | None = None) -> Iterator[SshShell]:
    """A shell that is closed at the end."""
    shell = SshShell(address, remote_setup, slurm_bin)
    try:
        yield shell
    finally:
        shell.close()


class Relay:
    """A TCP relay. It can break its connections, or keep them open and swallow everything.

    Args:
        target_port: Where to.
        turned_away: How many newcomers to send off first, as an sshd with too many does.
    """

    def __init__(self, target_port: int, turned_away: int = 0) -> None:
        self._target_port = target_port
        self._turned_away = turned_away
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._silent: set[socket.socket] = set()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self.connections += 1
                if self.connections <= self._turned_away:
                    near.sendall(b"Exceeded MaxStartups\r\n")
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                return
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if source in self._silent:
                    return  # reads no more either: the sender's buffers fill up
                sink.sendall(piece)
            if source not in self._silent:
                sink.shutdown(socket.SHUT_WR)

    def go_silent(self) -> None:
        """Every connection stays open and carries nothing any more. New ones work."""
        self._silent.update(self._open)

    def break_all(self) -> None:
        """End every connection. New ones work."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the relay."""
        self.break_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            sock.close()


@contextlib.contextmanager
def relay(target_port: int, turned_away: int = 0) -> Iterator[Relay]:
    """A relay to a port of this machine."""
    running = Relay(target_port, turned_away)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def login() -> Iterator[Login]:
    """A user to log in as."""
    if os.geteuid() != 0 or not os.path.exists("/usr/sbin/sshd"):
        pytest.skip("needs root and the package openssh-server")
    created = Login()
    try:
        yield created
    finally:
        created.remove()
