"""Logging in over SSH: the host's key first, then the user."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import paramiko

from dagster_slurm.errors import AuthenticationFailed, ConfigurationError, HostKeyRejected, HostUnreachable
from dagster_slurm.remote.known_hosts import KnownKeys, known_name, read_known_keys
from dagster_slurm.remote.shell import Deadline
from dagster_slurm.remote.tcp import open_socket

LOST = (paramiko.SSHException, EOFError, OSError)  # what calls into a broken connection raise
_KEEPALIVE_SECONDS = 30
_ATTEMPTS = 3
_KEYS_TRIED = 5  # sshd ends a connection at 6 failures (MaxAuthTries)
_LOG_NAME = "dagster_slurm.ssh"
_FIELD = "SlurmComputeResource."

# Everything that matters is raised; paramiko also logs it, with tracebacks. Lower this level to see that.
logging.getLogger(_LOG_NAME).setLevel(logging.CRITICAL)


@attrs.frozen
class SshAddress:
    """Where to log in, and how.

    Attributes:
        host: Name or address.
        port: TCP port.
        user: Remote user name.
        key_file: Private key (ed25519, ecdsa or rsa); a certificate beside it (``<key_file>-cert.pub``) is used too.
            None: the keys of the SSH agent, then ``~/.ssh/id_ed25519``, ``id_ecdsa`` and ``id_rsa``.
        known_hosts: The file with the host's key; None for ``~/.ssh/known_hosts`` and ``/etc/ssh/ssh_known_hosts``.
        password: Tried after the keys, also as the second factor of a host that asks for both; None for none.
        passphrase: Opens ``key_file``; None when it is not encrypted.
        connect_timeout_seconds: Limit for connecting and logging in.
        through: Jump hosts, in the order in which they are passed; each is logged in to, and its key is checked too.
    """

    host: str
    port: int
    user: str
    key_file: str | None = None
    known_hosts: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    passphrase: str | None = attrs.field(default=None, repr=False)
    connect_timeout_seconds: float = 15.0
    through: tuple[SshAddress, ...] = ()

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


@attrs.frozen
class LoggedIn:
    """A connection that is logged in, and those to the jump hosts below it, the first one first."""

    transport: paramiko.Transport
    below: tuple[paramiko.Transport, ...] = ()

    @property
    def sock(self) -> Any:
        """The TCP socket that everything goes through."""
        return (*self.below, self.transport)[0].sock

    def close(self) -> None:
        """Close all of it."""
        for transport in (self.transport, *reversed(self.below)):
            transport.close()


def connect(target: SshAddress, whole: Deadline) -> LoggedIn:
    """Open a transport, check the host's key, log in. Key files are read first: a wrong one costs no connection.

    Args:
        target: Where to log in.
        whole: The limit of the run; the target's own limit for connecting applies as well.

    Raises:
        ConfigurationError: A key file cannot be used.
        HostUnreachable: No connection, no SSH behind it, or a jump host that passes nothing on.
        HostKeyRejected: A host's key is not the recorded one; no credentials were sent to it.
        AuthenticationFailed: A host refused the user.
    """
    stations = (*target.through, target)
    known = [read_known_keys(station.known_hosts, station.host, station.port) for station in stations]
    keys = [None if s.key_file is None else _load_key(s.key_file, s.passphrase) for s in stations]
    deadline = Deadline(min(whole.remaining(), target.connect_timeout_seconds))
    opened: list[paramiko.Transport] = []
    try:
        for station, trusted, key in zip(stations, known, keys, strict=True):
            road = functools.partial(_open_road, opened[-1] if opened else None, station, deadline)
            opened.append(_handshake_again(station, road, trusted, deadline))
            _log_in(opened[-1], station, key, deadline)
            opened[-1].set_keepalive(_KEEPALIVE_SECONDS)
    except BaseException:
        for transport in reversed(opened):
            transport.close()
        raise
    return LoggedIn(opened[-1], tuple(opened[:-1]))


def _open_road(below: paramiko.Transport | None, station: SshAddress, deadline: Deadline) -> Any:
    """What the next SSH connection runs on: a TCP connection, or a channel through the jump host below."""
    if below is None:
        return open_socket(station.host, station.port, deadline)
    try:
        return below.open_channel(
            "direct-tcpip", (station.host, station.port), ("127.0.0.1", 0), timeout=max(0.1, deadline.remaining())
        )
    except LOST as error:
        raise HostUnreachable(
            f"The jump host does not connect to {station.host} port {station.port}: {error}",
            field=_FIELD + "proxy_jump",
            remedy=f"check that the jump host can reach {station.host} and allows forwarding (AllowTcpForwarding).",
        ) from error


class _HandshakeBroken(HostUnreachable):
    pass


def _handshake_again(
    target: SshAddress, road: Callable[[], Any], known: KnownKeys, deadline: Deadline
) -> paramiko.Transport:
    """Try a few times: sshd turns newcomers away at random while many log in at once (MaxStartups)."""
    attempt = 1
    while True:
        try:
            return _handshake(target, road, known, deadline)
        except _HandshakeBroken:
            pause = random.uniform(0.2, 0.6)
            if attempt == _ATTEMPTS or deadline.remaining() < 2 * pause:
                raise
            attempt += 1
            time.sleep(pause)


def _handshake(target: SshAddress, road: Callable[[], Any], known: KnownKeys, deadline: Deadline) -> paramiko.Transport:
    sock = road()
    try:
        transport = paramiko.Transport(sock)
    except LOST as error:
        sock.close()
        raise _not_ssh(target, error) from error
    transport.set_log_channel(_LOG_NAME)
    try:
        _check_host_key(transport, target, known, deadline)
    except BaseException:
        transport.close()
        raise
    return transport


def _check_host_key(transport: paramiko.Transport, target: SshAddress, known: KnownKeys, deadline: Deadline) -> None:
    options = transport.get_security_options()
    # Ask for a key of a recorded type first, or a host with several keys would seem unknown.
    options.key_types = sorted(options.key_types, key=lambda name: _plain_key_type(name) not in known.key_types)
    transport.banner_timeout = transport.handshake_timeout = max(0.1, deadline.remaining())
    try:
        transport.start_client(timeout=max(0.1, deadline.remaining()))
        offered = transport.get_remote_server_key()
    except LOST as error:
        raise _not_ssh(target, error) from error
    key_type, key = offered.get_name(), offered.asbytes()
    if known.trusts(key_type, key):
        return
    name = known_name(target.host, target.port)
    if key in known.revoked:
        what = f"The key of {name} is marked as revoked"
    elif known.trusted:
        what = f"The key of {name} is not the recorded one: the host was changed, or this is another host"
    else:
        what = f"The key of {name} is not recorded"
    raise HostKeyRejected(
        f"{what}. It offered {key_type} {offered.fingerprint}. No user name, key or password was sent.",
        field=_FIELD + "known_hosts",
        remedy=f"Compare the fingerprint with the one that the site publishes for {target.host} "
        f"({_FIELD}host, {_FIELD}port), then record the key: "
        f"ssh-keyscan -p {target.port} {target.host} >> {target.known_hosts or '~/.ssh/known_hosts'}",
    )


def _plain_key_type(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _log_in(
    transport: paramiko.Transport, target: SshAddress, file_key: paramiko.PKey | None, deadline: Deadline
) -> None:
    refusals: list[str] = []
    with contextlib.ExitStack() as stack:
        keys = [file_key] if file_key is not None else _own_keys(target, stack)
        for key in keys[:_KEYS_TRIED]:
            attempt = functools.partial(transport.auth_publickey, target.user, key)
            if _accepted(attempt, transport, target, deadline, refusals):
                return
        password = target.password
        if password is not None:
            attempt = functools.partial(transport.auth_password, target.user, password)
            if _accepted(attempt, transport, target, deadline, refusals):
                return
    tried = "; ".join(refusals) or "there was no key and no password to try"
    raise AuthenticationFailed(
        f"{target} refused the login: {tried.rstrip('.')}.",
        field=_FIELD + ("key_file" if password is None else "password"),
        remedy=f"Check {_FIELD}user and {_FIELD}key_file. Where the site asks for a second factor, run Dagster on the "
        "login node with the local shell.",
    )


def _accepted(
    attempt: Callable[[], list[str]],
    transport: paramiko.Transport,
    target: SshAddress,
    deadline: Deadline,
    refusals: list[str],
) -> bool:
    transport.auth_timeout = max(0.1, deadline.remaining())
    try:
        further = attempt()
    except paramiko.AuthenticationException as error:
        if deadline.remaining() <= 0:
            raise HostUnreachable(f"{target} did not finish the login in time.", field=_FIELD + "host") from error
        refusals.append(str(error))
        return False
    except LOST as error:
        raise HostUnreachable(f"{target} closed the connection during the login: {error}") from error
    if further:
        refusals.append(f"the host wants one more step: {', '.join(further)}")
    return not further


def _load_key(path: str, passphrase: str | None) -> paramiko.PKey:
    field = _FIELD + "key_file"
    file = Path(path).expanduser()
    reasons: list[str] = []
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            key = kind.from_private_key_file(str(file), passphrase)
        except OSError as error:
            raise ConfigurationError(
                f"The private key {file} cannot be read: {error.strerror}.", field=field
            ) from error
        except paramiko.PasswordRequiredException as error:
            raise ConfigurationError(
                f"The private key {file} is encrypted and no passphrase was given.",
                field=_FIELD + "passphrase",
            ) from error
        except (paramiko.SSHException, ValueError) as error:
            reasons.append(str(error))
            continue
        certificate = Path(f"{file}-cert.pub")
        if certificate.is_file():
            key.load_certificate(str(certificate))
        return key
    raise ConfigurationError(
        f"{file} is not a private key that can be used (ed25519, ecdsa or rsa"
        f"{', or the passphrase is wrong' if passphrase else ''}): {'; '.join(dict.fromkeys(reasons))}",
        field=field,
    )


def _own_keys(target: SshAddress, stack: contextlib.ExitStack) -> list[paramiko.PKey]:
    """The keys of the agent, which stays connected as long as the stack, and those in the usual files."""
    keys: list[paramiko.PKey] = list(stack.enter_context(contextlib.closing(paramiko.Agent())).get_keys())
    for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
        # Missing is usual, and encrypted ones are for the agent: nobody asked for them here.
        with contextlib.suppress(ConfigurationError):
            keys.append(_load_key(f"~/.ssh/{name}", target.passphrase))
    return keys


def _not_ssh(target: SshAddress, error: BaseException) -> _HandshakeBroken:
    reason = str(error) or type(error).__name__
    return _HandshakeBroken(
        f"{target.host} port {target.port} took the connection but did not complete an SSH handshake: {reason}",
        field=_FIELD + "port",
    )
