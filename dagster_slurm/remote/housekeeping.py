"""The directories of all sessions below one base: list them, seal one that has ended, remove an old one."""

from __future__ import annotations

import re
import secrets

import attrs

from dagster_slurm.errors import SessionDirectoryUnsafe
from dagster_slurm.remote.frames import Reply, quote
from dagster_slurm.remote.replies import missing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

_BASE = """base={base}
case $base in '~') base=$HOME ;; '~/'*) base=$HOME/${{base#??}} ;; esac
base=${{base%/}}
"""


@attrs.frozen(kw_only=True)
class FoundSession:
    """A session's directory.

    Attributes:
        session_id: Name of the session.
        closing: Whether it is ending, or has ended.
        ended_seconds_ago: Since it was seen that nothing of it is left, by the shared filesystem's clock; None before.
    """

    session_id: str
    closing: bool = False
    ended_seconds_ago: int | None = None


def list_script(remote_base: str) -> str:
    """List the sessions. It touches no lease: who only looks at directories does not keep a session alive."""
    return (
        _BASE.format(base=quote(remote_base))
        + """list_names() { for found in */; do [ -d "$found" ] && printf '%s\\n' "${found%/}"; done; }
list_marks() { touch .clock; stat -c '%Y %n' .clock ./*/closing ./*/ended 2>/dev/null; }
if cd "$base/sessions" 2>/dev/null; then
    section names list_names
    section marks list_marks
else
    emit names 0 ''
    emit marks 0 ''
fi
"""
    )


def read_list(reply: Reply, address: str) -> tuple[FoundSession, ...]:
    """The sessions that ``list_script`` found.

    Raises:
        ReplyIncomplete: the reply was cut.
    """
    names, marks = reply.section("names"), reply.section("marks")
    if names is None or marks is None:
        raise missing(reply, "the list of sessions", address)
    times: dict[str, int] = {}
    for line in marks.text.splitlines():
        time, _, path = line.partition(" ")
        if time.isdigit():
            times[path.removeprefix("./")] = int(time)
    now = times.get(".clock")
    return tuple(
        FoundSession(
            session_id=name,
            closing=f"{name}/closing" in times or f"{name}/ended" in times,
            ended_seconds_ago=None
            if now is None or f"{name}/ended" not in times
            else max(0, now - times[f"{name}/ended"]),
        )
        for name in names.text.splitlines()
        if _NAME.fullmatch(name)
    )


def seal_script(session_dir: str) -> str:
    """Mark a session in which nothing is left, and remove its secret. Only one that is closing."""
    return f"""session={quote(session_dir)}
seal() {{ [ ! -e "$session/closing" ] || {{ rm -f "$session/ray.token" && : >"$session/ended"; }}; }}
section seal seal
"""


def remove_script(remote_base: str, session_id: str) -> str:
    """Remove a sealed session's directory, and what an interrupted removal left. Renamed first: it is gone at once."""
    return (
        _BASE.format(base=quote(remote_base))
        + f"""session_id={quote(session_id)}
remove() {{
    cd "$base/sessions" || return
    if [ -e "$session_id/ended" ] && [ ! -L "$session_id" ]; then
        mv -T "$session_id" .removed.{secrets.token_hex(8)} || return
    fi
    rm -rf .removed.*
}}
section remove remove
"""
    )


def check_done(reply: Reply, name: str, what: str, address: str) -> None:
    """Raise for a script of one section that was not answered or failed."""
    section = reply.section(name)
    if section is None:
        raise missing(reply, f"the answer about {what}", address)
    if section.status != 0:
        raise SessionDirectoryUnsafe(f"On {address} {what} failed.", cluster_said=section.text)
