"""Parts of the commit script, in every shell that can be /bin/sh."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dagster_slurm.remote.frames import quote
from dagster_slurm.remote.scripts import part
from dagster_slurm_tests.unit.remote.shells import SHELLS

PROCESSES = 6
ROUNDS = 60


def parts(text: str) -> str:
    """The functions of commit.sh, and something to do with them."""
    return f"{part('prelude.sh')}\nsettle_environment\n{part('commit.sh')}\n{text}\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_of_all_who_make_a_file_exactly_one_is_first(shell: str, tmp_path: Path) -> None:
    loop = f"""cd {quote(str(tmp_path))}; round=0
until [ -e go ]; do :; done
while [ "$round" -lt {ROUNDS} ]; do
    round=$((round + 1))
    if make_first "file.$round"; then echo "$round"; fi
done"""
    running = [
        subprocess.Popen([*SHELLS[shell], "-c", parts(loop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=60) for process in running]
    assert [errors for _, errors in said] == [""] * PROCESSES
    firsts = sorted(int(word) for output, _ in said for word in output.split())
    assert firsts == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("content", ["", "7\n", "7;alpha", "\n\n  two\n\\lines $(x) `y`\n\n", "1\n\n\n2\n"])
def test_a_file_is_read_whole_without_its_last_newlines(shell: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / "answer"
    file.write_text(content)
    script = parts(f"read_whole {quote(str(file))}; printf '<%s>' \"$whole\"")
    done = subprocess.run([*SHELLS[shell], "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == f"<{content.rstrip()}>"
    assert done.stderr == ""
