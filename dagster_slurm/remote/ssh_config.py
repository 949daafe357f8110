"""Where to log in by the user's SSH configuration: names, ports, users, keys and jump hosts as ``ssh`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import paramiko

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.remote.ssh_login import SshAddress

USUAL_FILE = "~/.ssh/config"
_FIELD = "SlurmComputeResource."
_LONGEST_CHAIN = 5


@attrs.frozen(kw_only=True)
class Login:
    """What the user states; None in a field leaves it to the SSH configuration, then to OpenSSH's defaults.

    Attributes:
        host: Name, address, or an alias of the configuration.
        port: TCP port.
        user: Remote user name; one has to be stated here or there.
        key_file: Private key.
        known_hosts: File with the hosts' keys.
        proxy_jump: Jump hosts in order, ``[user@]host[:port]`` with commas between; "none" for none.
        config_file: The configuration; None reads ``~/.ssh/config`` where there is one.
        password: For the host itself only: no jump host ever gets it.
        passphrase: Opens the key files.
    """

    host: str
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    known_hosts: str | None = None
    proxy_jump: str | None = None
    config_file: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    passphrase: str | None = attrs.field(default=None, repr=False)


def address_of(login: Login) -> SshAddress:
    """Make what is stated whole with the SSH configuration; a stated value wins. Asks no host.

    Used of the configuration: HostName, Port, User, IdentityFile, UserKnownHostsFile and ProxyJump. A jump host without
    a user of its own gets the host's.

    Raises:
        ConfigurationError: the file cannot be read, names a ProxyCommand, or no user is stated anywhere.
    """
    config = _read(login.config_file)
    return _resolve(login, config, jumps=_LONGEST_CHAIN)


def _read(path: str | None) -> paramiko.SSHConfig:
    file = Path(path or USUAL_FILE).expanduser()
    config = paramiko.SSHConfig()
    if path is None and not file.exists():
        return config
    try:
        with file.open(encoding="utf-8") as stream:
            config.parse(stream)
    except (OSError, ValueError, paramiko.SSHException) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"The SSH configuration {file} cannot be read: {reason}.",
            field=_FIELD + "ssh_config",
            remedy="mend the file, or give another one; /dev/null stands for none.",
        ) from error
    return config


def _resolve(login: Login, config: paramiko.SSHConfig, jumps: int) -> SshAddress:
    found = _lookup(config, login.host)
    user = login.user or found.get("user")
    if not user:
        raise ConfigurationError(
            f"No user is named for {login.host}.",
            field=_FIELD + "user",
            remedy="give it, name it in the SSH configuration, or set local=True on the login node.",
        )
    address = SshAddress(
        host=str(found.get("hostname", login.host)),
        port=login.port or _port(found, login.host),
        user=str(user),
        key_file=login.key_file or _first_file(found.get("identityfile")),
        known_hosts=login.known_hosts or _first_file(str(found.get("userknownhostsfile", "")).split()),
        password=login.password,
        passphrase=login.passphrase,
    )
    hops = login.proxy_jump if login.proxy_jump is not None else found.get("proxyjump")
    if not hops or str(hops).strip().lower() == "none":
        if login.proxy_jump is None:
            _refuse_proxy_command(found, login.host)
        return address
    return attrs.evolve(address, through=_hops(str(hops), login, address, config, jumps))


def _hops(
    text: str, login: Login, target: SshAddress, config: paramiko.SSHConfig, jumps: int
) -> tuple[SshAddress, ...]:
    chain: list[SshAddress] = []
    for number, hop in enumerate(text.split(",")):
        if jumps - number <= 0:
            raise ConfigurationError(
                f"More than {_LONGEST_CHAIN} jump hosts lead to {login.host}.", field=_FIELD + "proxy_jump"
            )
        user, host, port = _parse_hop(hop.strip().removeprefix("ssh://"))
        stated = attrs.evolve(
            login, host=host, port=port, user=user or _lookup(config, host).get("user"), password=None
        )
        # As ssh does it: only the first hop may need jump hosts of its own.
        stated = attrs.evolve(stated, user=stated.user or target.user, proxy_jump=None if number == 0 else "none")
        resolved = _resolve(stated, config, jumps - number - 1)
        chain += [*resolved.through, attrs.evolve(resolved, through=())]
    return tuple(chain)


def _parse_hop(hop: str) -> tuple[str | None, str, int | None]:
    user, at, place = hop.rpartition("@")
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)) or (at and not user):
        raise ConfigurationError(
            f"{hop!r} is no jump host; it has to be [user@]host[:port].", field=_FIELD + "proxy_jump"
        )
    return user or None, host, int(port) if port else None


def _lookup(config: paramiko.SSHConfig, host: str) -> Mapping[str, Any]:
    try:
        return config.lookup(host)
    except (paramiko.SSHException, ImportError) as error:
        # A Match exec needs a library that is not there, or a pattern is wrong.
        raise ConfigurationError(
            f"The SSH configuration of {host} cannot be used: {error}.", field=_FIELD + "ssh_config"
        ) from error


def _port(found: Mapping[str, Any], host: str) -> int:
    stated = str(found.get("port", 22))
    if not (stated.isdecimal() and 0 < int(stated) < 65536):
        raise ConfigurationError(
            f"The SSH configuration of {host} has the port {stated!r}.", field=_FIELD + "ssh_config"
        )
    return int(stated)


def _first_file(names: Any) -> str | None:
    """OpenSSH names usual files whether they exist or not."""
    files = [Path(str(name)).expanduser() for name in names or ()]
    return next((str(file) for file in files if file.is_file()), None)


def _refuse_proxy_command(found: Mapping[str, Any], host: str) -> None:
    command = found.get("proxycommand")
    if command and str(command).lower() != "none":
        raise ConfigurationError(
            f"The SSH configuration reaches {host} through a ProxyCommand, which is not supported.",
            field=_FIELD + "ssh_config",
            remedy="use ProxyJump there, or state proxy_jump.",
        )
