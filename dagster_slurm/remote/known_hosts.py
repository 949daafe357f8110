"""Reading OpenSSH ``known_hosts`` files: which keys are recorded for a host."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from dagster_slurm.errors import ConfigurationError


@attrs.frozen
class KnownKeys:
    """What the files say about one host.

    Attributes:
        trusted: Recorded keys, as (key type, key bytes), in file order.
        revoked: Key bytes that must never be accepted.
    """

    trusted: tuple[tuple[str, bytes], ...] = ()
    revoked: frozenset[bytes] = frozenset()

    @property
    def key_types(self) -> frozenset[str]:
        """The types of the trusted keys."""
        return frozenset(key_type for key_type, _ in self.trusted)

    def trusts(self, key_type: str, key: bytes) -> bool:
        """True when exactly this key is recorded and not revoked."""
        return (key_type, key) in self.trusted and key not in self.revoked


def known_name(host: str, port: int) -> str:
    """The name under which OpenSSH records a host: ``[host]:port`` unless the port is 22."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def read_known_keys(path: str | None, host: str, port: int) -> KnownKeys:
    """The keys that the files record for a host.

    Args:
        path: The one file to read; None for the user's and the system's, of which either may be missing.
        host: Name or address, as it will be connected to.
        port: TCP port.

    Raises:
        ConfigurationError: The given file cannot be read.
    """
    lines: list[str] = []
    for name in ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts") if path is None else (path,):
        try:
            lines += Path(name).expanduser().read_text("utf-8", errors="replace").splitlines()
        except OSError as error:
            if path is not None:
                raise ConfigurationError(
                    f"The known hosts file {name} cannot be read: {error.strerror}.",
                    field="SlurmComputeResource.known_hosts",
                ) from error
    return keys_for_host(lines, host, port)


def keys_for_host(lines: Iterable[str], host: str, port: int) -> KnownKeys:
    """Collect the keys of a host. Handles hashed names, patterns and revoked keys.

    Lines that cannot be read and certificate authorities are left out: they add no trust.
    """
    name = known_name(host, port)
    trusted: list[tuple[str, bytes]] = []
    revoked: set[bytes] = set()
    for line in lines:
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3 or not _names_match(fields[0], name):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        if marker == "":
            trusted.append((fields[1], key))
        elif marker == "@revoked":
            revoked.add(key)
    return KnownKeys(tuple(trusted), frozenset(revoked))


def _names_match(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        return _hash_matches(names, name)
    matched = False
    for pattern in names.lower().split(","):
        if _pattern_matches(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _pattern_matches(pattern: str, name: str) -> bool:
    # Only * and ? are special; fnmatch would also give meaning to the brackets of [host]:port.
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name) is not None


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in hashed[3:].split("|"))
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
