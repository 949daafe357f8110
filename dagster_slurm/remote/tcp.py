"""Opening the TCP connection that SSH runs on."""

from __future__ import annotations

import socket

from dagster_slurm.errors import HostUnreachable
from dagster_slurm.remote.shell import Deadline

_UNACKNOWLEDGED_MILLISECONDS = 60_000  # after that the kernel gives up a connection whose far end is gone


def open_socket(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers. Small packets are sent at once; a dead far end is noticed.

    Name resolution itself cannot be bounded here; the system's resolver has its own limit.

    Raises:
        HostUnreachable: The name has no address, or no address answers in time.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HostUnreachable(
            f"The host name {host} cannot be resolved: {error.strerror or error}.",
            field="SlurmComputeResource.host",
            remedy="Check the name; it has to resolve on the machine where Dagster runs.",
        ) from error
    reasons: list[str] = []
    for position, (family, kind, protocol, _, address) in enumerate(found):
        # An address that swallows packets must leave time for the others.
        share = deadline.remaining() / (len(found) - position)
        if share <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(share)
            sock.connect(address)
        except OSError as error:
            sock.close()
            reasons.append(f"{address[0]}: {error.strerror or error}")
        except BaseException:
            sock.close()
            raise
        else:
            _tune(sock)
            return sock
    raise HostUnreachable(
        f"No connection to {host} port {port}: {'; '.join(reasons) or 'no time left'}.",
        field="SlurmComputeResource.host",
        remedy="Check SlurmComputeResource.host and SlurmComputeResource.port.",
    )


def _tune(sock: socket.socket) -> None:
    sock.settimeout(None)
    # Without it every command waits for a delayed acknowledgement, about 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
