"""The framed reply of a remote script, and the quoting of values that go into one.

A reply is a byte stream in which anything may stand: banners, output of ``module``, messages of a login shell.
What counts are frames. Each carries the nonce of its run, a number that counts from 1, a name, an exit status
and the POSIX ``cksum`` of all that and its body.
"""

from __future__ import annotations

import re
import zlib

import attrs

NOISE_LIMIT = 4000  # characters; enough for an error message, little enough for a log line
DONE = "done"

_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


@attrs.frozen
class Section:
    """One answered part of a reply.

    Attributes:
        name: The name the script gave it; names may repeat within a reply.
        status: Exit status of its command, 0 to 255, or the number given to ``emit``.
        body: Standard output and standard error, merged, byte for byte, without NUL bytes.
    """

    name: str
    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8; bytes that are not become U+FFFD."""
        return self.body.decode("utf-8", errors="replace")


@attrs.frozen
class Reply:
    """What a script answered: an unbroken beginning of what it sent, never anything else.

    Attributes:
        sections: In the order sent, up to the first frame that is missing or damaged; without the final "done".
        complete: True when every frame arrived intact, the final one included.
        noise: The bytes outside intact frames and the standard error stream, last 4,000 characters. For error
            messages only.
    """

    sections: tuple[Section, ...]
    complete: bool
    noise: str

    def section(self, name: str) -> Section | None:
        """The first section of that name; None when it was not answered."""
        return next((section for section in self.sections if section.name == name), None)


def posix_cksum(data: bytes) -> int:
    """The CRC that POSIX ``cksum`` prints for these bytes.

    It is the CRC of zlib with the bits of every byte, and of the result, in the other order, started at zero
    and continued over the length.
    """
    length = len(data)
    tail = length.to_bytes((length.bit_length() + 7) // 8, "little")
    mirrored = zlib.crc32((data + tail).translate(_REVERSED_BITS), 0xFFFFFFFF)
    return int.from_bytes(mirrored.to_bytes(4, "big").translate(_REVERSED_BITS), "little")


def parse_reply(output: bytes, nonce: str, stderr: bytes = b"") -> Reply:
    """Read the frames of one run.

    Stops at the first gap: a frame behind a lost one could be taken for another of the same name.
    A frame that arrived twice counts once.

    Args:
        output: Standard output of the script.
        nonce: The nonce that the script was composed with.
        stderr: Standard error of the script; goes to the noise.
    """
    mark = re.escape(nonce.encode())
    header = re.compile(rb"\n?<(%s (\d{1,9}) ([^ \n]+) (-?\d{1,9}))>\n" % mark)
    trailer = re.compile(rb"\n<%s (\d{1,10}) (\d{1,15})\n" % mark)
    found: list[Section] = []
    noise: list[bytes] = []
    position = noise_from = 0
    while (head := header.search(output, position)) is not None:
        tail = trailer.search(output, head.end())
        body = b"" if tail is None else output[head.end() : tail.start()]
        if tail is None or not _intact(head[1], body, tail):
            position = head.end()
            continue
        number, name, status = int(head[2]), head[3].decode("utf-8", "replace"), int(head[4])
        section = Section(name, status, body)
        if number == len(found) + 1:
            found.append(section)
        elif not (1 <= number <= len(found) and found[number - 1] == section):
            break
        noise.append(output[noise_from : head.start()])
        position = noise_from = tail.end()
    complete = bool(found) and found[-1].name == DONE
    noise.append(output[noise_from:])
    return Reply(
        sections=tuple(found[:-1] if complete else found),
        complete=complete,
        noise=_noise_text(b"".join(noise), stderr),
    )


def _intact(head: bytes, body: bytes, tail: re.Match[bytes]) -> bool:
    covered = head + b"\n" + body
    return int(tail[2]) == len(covered) and int(tail[1]) == posix_cksum(covered)


def _noise_text(outside: bytes, stderr: bytes) -> str:
    parts = (part.decode("utf-8", "replace").strip() for part in (outside, stderr))
    return "\n".join(part for part in parts if part)[-NOISE_LIMIT:]


def quote(value: str) -> str:
    """The value as one word of POSIX sh, whatever it contains.

    Raises:
        ValueError: It holds a NUL byte, which no shell word can.
    """
    if "\0" in value:
        raise ValueError("a value with a NUL byte cannot be passed to a shell")
    if value and not re.search(r"[^A-Za-z0-9_@%+:,./-]", value):
        return value
    return "'" + value.replace("'", "'\\''") + "'"
