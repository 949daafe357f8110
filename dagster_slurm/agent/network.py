"""The address at which other nodes reach this one, and free ports."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable

ADDRESS_VARIABLE = "DAGSTER_SLURM_NODE_IP"

#: Any address behind the default route does: connecting a datagram socket sends nothing (RFC 5737 documentation range).
BEHIND_DEFAULT_ROUTE = "198.51.100.1"

LOOPBACK = "127.0.0.1"

#: Linux, netdevice(7): the address of an interface.
SIOCGIFADDR = 0x8915


def choose_address(
    override: str | None, toward_head: str | None, named: Iterable[str], default_route: str | None
) -> str:
    """The address Ray binds to and publishes.

    Args:
        override: The user's choice; wins when set.
        toward_head: Source address for packets to the head; None on the head itself.
        named: Local addresses to which the node's name resolves. Names that resolve to loopback are common and useless.
        default_route: Source address toward the default route; None without a network.
    """
    if override:
        return override
    if toward_head is not None:
        return toward_head
    routable = [address for address in named if not ipaddress.ip_address(address).is_loopback]
    return next(iter(routable), None) or default_route or LOOPBACK


def interface_address(name: str) -> str | None:
    """IPv4 address of a network interface; None when it has none, or does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def node_address(override: str | None, node: str, head_ip: str | None) -> str:
    """The address of this node; ``head_ip`` is None on the head."""
    return choose_address(
        override,
        None if head_ip is None else source_address(head_ip),
        [] if head_ip is not None else local_addresses_of(node),
        source_address(BEHIND_DEFAULT_ROUTE),
    )


def source_address(target: str) -> str | None:
    """Local address the system would send from to reach ``target``; None when there is no route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def local_addresses_of(name: str) -> list[str]:
    """IPv4 addresses that ``name`` resolves to and that belong to this machine."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return [address for address in dict.fromkeys(str(entry[4][0]) for entry in found) if is_local(address)]


def is_local(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def host_of(address: str) -> str:
    """``10.0.0.1:6379`` -> ``10.0.0.1``; brackets of IPv6 are removed."""
    return address.rsplit(":", 1)[0].strip("[]")
