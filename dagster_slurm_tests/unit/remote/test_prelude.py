"""The composed script, in every shell that this machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_slurm.remote.frames import quote
from dagster_slurm.remote.shell import compose
from dagster_slurm_tests.unit.remote.shells import SHELLS, run_script, run_text

in_every_shell = pytest.mark.parametrize("words", SHELLS.values(), ids=SHELLS.keys())


@in_every_shell
def test_sections_keep_bytes_status_and_order(words: tuple[str, ...]) -> None:
    body = """
section plain echo hello
section newlines printf '\\n\\na\\n\\n'
section empty true
section failed sh -c 'echo out; echo err >&2; exit 3'
section bytes printf '\\377\\001\\037\\r\\t.'
own_function() { printf '%s|' "$@"; return 4; }
section function own_function 'a b' '' '*'
emit given 124 'text
with lines
'
"""
    reply = run_script(words, compose(body))
    assert reply.complete
    assert [(section.name, section.status, section.body) for section in reply.sections] == [
        ("plain", 0, b"hello\n"),
        ("newlines", 0, b"\n\na\n\n"),
        ("empty", 0, b""),
        ("failed", 3, b"out\nerr\n"),
        ("bytes", 0, b"\xff\x01\x1f\r\t."),
        ("function", 4, b"a b||*|"),
        ("given", 124, b"text\nwith lines\n"),
    ]


@in_every_shell
def test_a_large_section_arrives_whole(words: tuple[str, ...]) -> None:
    reply = run_script(words, compose("section large sh -c 'yes 0123456789abcde | head -c 3000000'"))
    section = reply.section("large")
    assert section is not None
    assert section.body == b"0123456789abcde\n" * 187500


@in_every_shell
def test_a_script_cut_at_any_byte_runs_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    body = f': >{quote(str(ran))}\nsection text cat\nemit more 0 "$(cat <<END\none\n}}\nEND\n)"\n'
    script = compose(body, remote_setup=f": >{quote(str(ran))}", slurm_bin="/opt/slurm/bin")
    start_of_main = script.text.index(b"main_")
    # Every byte for /bin/sh; for the others a sample of the definitions, which are the same for all scripts.
    step = 1 if words == ("/bin/sh",) else 23
    large = compose(body + "x" * (1 << 18)).arguments[1:]
    assert script.arguments[1:] == ("-s",) != large
    for length in [*range(0, start_of_main, step), *range(start_of_main, len(script.text))]:
        options = large if length % 3 else ("-s",)
        _, output, errors = run_text(words, script.text[:length], options=options)
        assert output == b"", script.text[:length]
        assert b"not found" not in errors, script.text[:length]
        assert not ran.exists(), script.text[:length]
    assert run_script(words, script).complete
    assert ran.exists()


@in_every_shell
def test_a_large_script_runs_as_a_small_one_does(words: tuple[str, ...]) -> None:
    text = "it's\n" * 100_000
    reply = run_script(words, compose(f"emit text 0 {quote(text)}\nsection input cat"))
    assert [section.text for section in reply.sections] == [text, ""]


@in_every_shell
def test_commands_cannot_read_the_script(words: tuple[str, ...]) -> None:
    reply = run_script(words, compose('read line\nemit rest 0 "[$line]"\ncat\nsection cat cat'))
    assert reply.complete
    assert [section.body for section in reply.sections] == [b"[]", b""]
    assert reply.noise == ""


@in_every_shell
def test_variables_that_change_slurm_commands_are_removed_and_no_others(words: tuple[str, ...]) -> None:
    removed = {
        "SQUEUE_FORMAT": "%i",
        "SCANCEL_STATE": "RUNNING",
        "SACCT_FORMAT": "x\ny",
        "SBATCH_ACCOUNT": "a b",
        "SALLOC_QOS": "it's",
        "SLURM_JOB_ID": "4\nKEPT_A=5\nexport KEPT_B=6",
        "SLURM_CONF_SERVER": "x",
        "PMI_RANK": "0",
        "PMIX_ID": "1",
    }
    kept = {
        "SLURM_CONF": "/etc/slurm conf",
        "KEPT_A": "one\nSLURM_X='2'\nexport SLURM_CONF=no\nSBATCH_-=$(touch /nowhere) `x` * [a]",
        "KEPT_B": "",
        "MY_SLURM_VALUE": "mine\n",
        "IFS_LIKE": " \t",
    }
    env = {"PATH": os.environ["PATH"], **removed, **kept}
    reply = run_script(
        words,
        compose("section env env -0\n" + "section names env", remote_setup="SLURM_LATE=1; export SLURM_LATE"),
        env,
    )
    names = reply.section("names")
    assert names is not None
    for name in (*removed, "SLURM_LATE"):
        assert f"\n{name}=" not in "\n" + names.text.replace(kept["KEPT_A"], "")
    check = "\n".join(f"section {name} printenv {name}" for name in kept)
    answers = run_script(words, compose(check), env)
    assert {section.name: section.text for section in answers.sections} == {
        name: value + "\n" for name, value in kept.items()
    }


@in_every_shell
def test_settings_hold_whatever_the_setup_lines_do(words: tuple[str, ...], tmp_path: Path) -> None:
    setup = "set -eufa\nIFS=x\numask 000\nLC_ALL=C.UTF-8; export LC_ALL\necho noise\nPATH=/usr/local/bin:$PATH # end"
    body = """
false
emit unset 0 "$never_set"
section locale printenv LC_ALL
section umask umask
section path printenv PATH
set -- axb /b*
emit words 0 "$#"
text='axb cxd'
set -- $text
emit split 0 "$1"
after_setup=1
section exported printenv after_setup
"""
    reply = run_script(words, compose(body, remote_setup=setup, slurm_bin="/opt/it's a dir/bin"))
    assert reply.complete
    assert reply.noise == "noise"
    bodies = {section.name: section.text for section in reply.sections}
    assert bodies["locale"] == "C\n"
    assert bodies["umask"].strip()[-3:] == "077"
    assert bodies["path"].startswith("/opt/it's a dir/bin:/usr/local/bin:")
    assert bodies["words"] == str(1 + len([name for name in os.listdir("/") if name.startswith("b")]))
    assert bodies["split"] == "axb"
    assert bodies["exported"] == ""


@in_every_shell
@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("echo no licence; exit 3", "no licence"),
        ("echo 'unclosed", ""),
        ("}\n: >RAN", ""),
        ("cat <<END", ""),
        ("exec /nowhere/sh", "/nowhere/sh"),
    ],
)
def test_setup_lines_that_fail_answer_nothing_and_say_why(
    words: tuple[str, ...], setup: str, why: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    script = compose(f": >{quote(str(ran))}\nsection t true", remote_setup=setup.replace("RAN", quote(str(ran))))
    reply = run_script(words, script)
    assert (reply.sections, reply.complete) == ((), False)
    assert reply.noise
    assert why in reply.noise
    assert not ran.exists()


@in_every_shell
def test_an_early_end_is_not_complete(words: tuple[str, ...]) -> None:
    reply = run_script(words, compose("section one echo 1\nexit 0\nsection two echo 2"))
    assert [section.name for section in reply.sections] == ["one"]
    assert not reply.complete
    assert reply.section("two") is None


@in_every_shell
@pytest.mark.parametrize(
    "value", ["", "a b", "it's", "$(id) `id` \\", "-n", "*", "line\n\nend\n", "äöü\udcff", "~", "#x"]
)
def test_quoted_values_arrive_unchanged(words: tuple[str, ...], value: str) -> None:
    raw = value.encode("utf-8", "surrogateescape")
    reply = run_script(words, compose(f"section word printf %s {quote(value)}"))
    assert [section.body for section in reply.sections] == [raw]


@in_every_shell
def test_a_frame_inside_a_frame_is_only_text(words: tuple[str, ...]) -> None:
    inner = run_script(words, compose("section inner echo secret", nonce="aa"))
    assert inner.complete
    script = compose("section inner echo secret", nonce="aa")
    _, output, _ = run_text(words, script.text)
    outer = run_script(words, compose(f"emit outer 0 {quote(output.decode())}", nonce="bb"))
    assert outer.complete
    assert [(section.name, section.body) for section in outer.sections] == [("outer", output)]
