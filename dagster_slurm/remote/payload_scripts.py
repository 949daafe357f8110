"""The scripts of a payload: bring it, look at it, stop it."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from dagster_slurm.errors import SessionClosing, SessionDirectoryUnsafe, SessionNotFound
from dagster_slurm.remote.frames import Reply, quote
from dagster_slurm.remote.replies import missing
from dagster_slurm.remote.transfer import unpack_commands

#: Most bytes of a log or message file that one look brings.
CHUNK_BYTES = 256 * 1024

#: Who follows a payload, as a JSON object; the same at every look.
Mark: TypeAlias = Mapping[str, object]


@attrs.frozen(kw_only=True)
class PayloadPoll:
    """One look at a payload.

    Attributes:
        state: "waiting" (no head has taken it yet), "running", "succeeded", "failed" or "cancelled"; None when it
            could not be read.
        exit_code: Its exit status once it ended by itself.
        message: What the head's agent says of its end.
        head_job_id: The head that took it.
        ended_with_head: Whether it failed only because its head ended.
        messages: Bytes of its Pipes messages from the offset on.
        log: Bytes of its output from the offset on.
        messages_left: Whether more messages were there than one look brings.
        log_left: The same for the output.
        work: What it reported with ``report_work``; None when nothing was reported.
        closing: Whether the session is ending.
    """

    state: str | None
    exit_code: int | None
    message: str | None
    head_job_id: str | None
    ended_with_head: bool
    messages: bytes
    log: bytes
    messages_left: bool
    log_left: bool
    work: Mapping[str, Any] | None
    closing: bool

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ("succeeded", "failed", "cancelled")


def start_script(
    session_dir: str, payload_id: str | None, archive: bytes, argv: Sequence[str], env: Mapping[str, str]
) -> str:
    """Bring a payload's files; it becomes visible to the head's agent by one rename at the end.

    With an id the script may run twice: the second one finds the payload in place, or completes it.
    """
    spec = json.dumps({"schema_version": 1, "argv": list(argv), "env": dict(env), "cwd": "."})
    nonce = secrets.token_hex(4)
    named = f"$(date +%s)-{nonce}" if payload_id is None else quote(payload_id)
    return f"""session={quote(session_dir)}
start_payload() {{
    [ -d "$session/payloads" ] || {{ emit payload 3 'no such session directory'; return; }}
    [ ! -e "$session/closing" ] || {{ emit payload 4 'the session is ending'; return; }}
    payload={named}
    directory=$session/payloads/$payload
    if [ ! -e "$directory/spec.json" ]; then
        said=$(bring_payload 2>&1) || {{ emit payload 1 "$said"; return; }}
    fi
    touch "$session/lease"
    emit payload 0 "$payload"
}}
bring_payload() {{
    mkdir -p "$directory/files.{nonce}" && cd "$directory/files.{nonce}" &&
    {unpack_commands(archive, ".").rstrip()} &&
    cd "$directory" && {{ mv -T files.{nonce} files 2>/dev/null || [ -d files ]; }} && rm -rf files.{nonce} &&
    printf %s {quote(spec)} >spec.{nonce} && mv spec.{nonce} spec.json
}}
start_payload
"""


def read_start(reply: Reply, session_dir: str, address: str) -> str:
    """Id of the payload that was brought.

    Raises:
        SessionNotFound, SessionClosing, SessionDirectoryUnsafe, ReplyIncomplete: it was not.
    """
    section = reply.section("payload")
    if section is None:
        raise missing(reply, "the answer about the payload", address)
    if section.status == 3:
        raise SessionNotFound(f"There is no session directory {session_dir} on {address}.")
    if section.status == 4:
        raise SessionClosing(f"The session {session_dir} on {address} is ending; the payload was not brought.")
    if section.status != 0:
        raise SessionDirectoryUnsafe(
            f"The payload could not be brought to {session_dir} on {address}.",
            cluster_said=section.text,
            remedy="check free space, quota and permissions of remote_base.",
        )
    return section.text


def poll_script(
    session_dir: str, payload_id: str, messages_offset: int, log_offset: int, mark: Mark | None = None
) -> str:
    """Look at a payload. Its status is read before its output: an end that is seen has all output behind it.

    With a mark its file is touched, so its age tells when the payload's step last looked.
    """
    driver = '"$directory/driver.json"'
    marking = "" if mark is None else f"[ -s {driver} ] && touch {driver} || printf %s {_json(mark)} >{driver}"
    return f"""session={quote(session_dir)}
directory=$session/payloads/{quote(payload_id)}
show() {{ [ -e "$1" ] || return 0; cat "$1"; }}
chunk() {{ [ -e "$1" ] || return 0; tail -c "+$2" "$1" | head -c {CHUNK_BYTES} | base64; }}
if [ ! -d "$directory" ]; then emit payload 3 'no such payload'; else
    emit payload 0 ''
    {marking or ":"}
    section status show "$directory/status.json"
    section messages chunk "$directory/messages" {messages_offset + 1}
    section log chunk "$directory/log" {log_offset + 1}
    section work show "$directory/work.json"
    if [ -e "$session/closing" ]; then emit closing 0 yes; else emit closing 0 no; fi
    [ -e "$session/lease" ] && touch "$session/lease"
fi
"""


def read_poll(reply: Reply, session_dir: str, address: str) -> PayloadPoll:
    """Read one look at a payload.

    Raises:
        SessionNotFound: its directory is gone.
        ReplyIncomplete: the reply was cut.
    """
    payload = reply.section("payload")
    if payload is not None and payload.status == 3:
        raise SessionNotFound(f"The payload's directory below {session_dir} on {address} is gone.")
    if not reply.complete:
        raise missing(reply, "the state of a payload", address)
    status = _object(reply, "status")
    messages, log = _chunk(reply, "messages", address), _chunk(reply, "log", address)
    closing = reply.section("closing")
    code = None if status is None else status.get("exit_code")
    return PayloadPoll(
        state=_state(reply, status),
        exit_code=code if isinstance(code, int) else None,
        message=_text(status, "message"),
        head_job_id=_text(status, "head_job_id"),
        ended_with_head=status is not None and status.get("ended_with_head") is True,
        messages=messages,
        log=log,
        messages_left=len(messages) >= CHUNK_BYTES,
        log_left=len(log) >= CHUNK_BYTES,
        work=_object(reply, "work"),
        closing=closing is not None and closing.text == "yes",
    )


def _json(mark: Mark) -> str:
    return quote(json.dumps(dict(mark)))


def _state(reply: Reply, status: Mapping[str, Any] | None) -> str | None:
    section = reply.section("status")
    if section is not None and not section.body:
        return "waiting"
    return _text(status, "state")


def _text(document: Mapping[str, Any] | None, key: str) -> str | None:
    value = None if document is None else document.get(key)
    return value if isinstance(value, str) else None


def _object(reply: Reply, name: str) -> dict[str, Any] | None:
    section = reply.section(name)
    if section is None or not section.body:
        return None
    try:
        value = json.loads(section.text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _chunk(reply: Reply, name: str, address: str) -> bytes:
    section = reply.section(name)
    if section is None:
        return b""
    try:
        # Binary output cannot pass a shell variable, hence the encoding; blanks are line ends.
        return base64.b64decode(b"".join(section.body.split()), validate=True)
    except binascii.Error as error:
        raise missing(reply, f"a readable piece of the payload's {name}", address) from error


def replace_script(session_dir: str, step: str, attempt: str) -> str:
    """Cancel the payloads of a step's other attempts that have not ended, and print the ids of those that run.

    One that no head has claimed counts as ended: a head looks for ``cancel`` after its claim and before its start.
    """
    return f"""session={quote(session_dir)}
list_running() {{
    for directory in "$session"/payloads/*-{step}-*; do
        case ${{directory##*/}} in *-{step}-{attempt}-*) continue ;; esac
        [ -e "$directory/spec.json" ] || continue
        grep -qE '"state": ?"(succeeded|failed|cancelled)"' "$directory/status.json" 2>/dev/null && continue
        printf '' >"$directory/cancel"
        for claim in "$directory"/claim.*; do
            [ -e "$claim" ] && printf '%s\n' "${{directory##*/}}"
        done
    done
    :
}}
section running list_running
"""


def read_running(reply: Reply, address: str) -> tuple[str, ...]:
    """Payload ids that ``replace_script`` printed.

    Raises:
        ReplyIncomplete: the reply was cut.
    """
    section = reply.section("running")
    if section is None or section.status != 0:
        raise missing(reply, "the step's earlier payloads", address)
    return tuple(section.text.split())


def cancel_script(session_dir: str, payload_id: str) -> str:
    """Ask the head's agent to stop a payload."""
    return f"section cancel touch {quote(f'{session_dir}/payloads/{payload_id}/cancel')}\n"
