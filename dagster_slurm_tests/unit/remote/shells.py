"""The POSIX shells of this machine that a login node may have as /bin/sh."""

from __future__ import annotations

import shutil
import subprocess

from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.shell import Script

_CANDIDATES = {
    "sh": ("/bin/sh",),
    "dash": ("dash",),
    "bash": ("bash",),
    "bash-posix": ("bash", "--posix"),  # what bash is where it is /bin/sh
    "busybox": ("busybox", "sh"),
}
SHELLS = {name: words for name, words in _CANDIDATES.items() if shutil.which(words[0])}


def run_text(
    words: tuple[str, ...], text: bytes, env: dict[str, str] | None = None, options: tuple[str, ...] = ("-s",)
) -> tuple[int, bytes, bytes]:
    """Run this text as a script on standard input."""
    ended = subprocess.run([*words, *options], input=text, capture_output=True, timeout=60, env=env)
    return ended.returncode, ended.stdout, ended.stderr


def run_script(words: tuple[str, ...], script: Script, env: dict[str, str] | None = None) -> Reply:
    """Run a composed script and read its reply."""
    _, output, errors = run_text(words, script.text, env, script.arguments[1:])
    return script.parse(output, errors)
