"""Packing and unpacking a small tree."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.remote.frames import quote
from dagster_slurm.remote.shell import LocalShell, compose
from dagster_slurm.remote.transfer import pack, unpack_commands
from dagster_slurm_tests.unit.remote.shells import SHELLS, run_script


def unpack(data: bytes, target: Path) -> int:
    """Unpack through a real shell and return the exit status."""
    body = f"unpack() {{\n{unpack_commands(data, str(target))}}}\nsection unpack unpack\n"
    section = LocalShell().run(body).section("unpack")
    assert section is not None
    return section.status


def tree(root: Path) -> dict[str, tuple[str, bytes]]:
    """Every entry below root with its mode and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = stat.filemode(path.lstat().st_mode)
        content = os.readlink(path).encode() if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[path.relative_to(root).as_posix()] = (mode, content)
    return found


_names = st.text("ab -_.'\"$é\n\\*", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
_trees = st.dictionaries(
    _names,
    st.recursive(
        st.tuples(st.binary(max_size=300), st.booleans()),
        lambda inner: st.dictionaries(_names, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


def build(root: Path, entries: dict[str, object]) -> dict[str, tuple[str, bytes]]:
    """Make the files below root; returns what must arrive."""
    expected: dict[str, tuple[str, bytes]] = {}
    for name, entry in entries.items():
        path = root / name
        if isinstance(entry, dict):
            path.mkdir()
            expected[name] = ("drwx------", b"")
            expected |= {f"{name}/{below}": value for below, value in build(path, entry).items()}
        else:
            assert isinstance(entry, tuple)
            content, executable = entry
            path.write_bytes(content)
            path.chmod(0o755 if executable else 0o664)
            expected[name] = ("-rwx------" if executable else "-rw-------", content)
    return expected


@settings(max_examples=25)
@given(_trees)
def test_a_tree_keeps_its_bytes_and_private_modes(entries: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "tar get", "deep")
        source.mkdir()
        expected = build(source, entries)
        data = pack(source)
        assert unpack(data, target) == 0
        assert tree(target) == expected
        for path in source.rglob("*"):
            os.utime(path, (1, 1))
        assert pack(source) == data


@pytest.mark.parametrize("words", SHELLS.values(), ids=SHELLS.keys())
def test_every_shell_unpacks_a_large_file(words: tuple[str, ...], tmp_path: Path) -> None:
    source = tmp_path / "data.bin"
    source.write_bytes(os.urandom(5 << 20))
    target = tmp_path / "it's here"
    reply = run_script(words, compose(unpack_commands(pack(source), str(target)) + "emit status 0 $?"))
    assert (reply.complete, reply.noise) == (True, "")
    assert (target / "data.bin").read_bytes() == source.read_bytes()


def test_a_single_file_keeps_its_name(tmp_path: Path) -> None:
    source = tmp_path / "main.py"
    source.write_text("print(1)\n")
    assert unpack(pack(source), tmp_path / "out") == 0
    assert tree(tmp_path / "out") == {"main.py": ("-rw-------", b"print(1)\n")}


def test_arrival_is_the_file_time_so_that_site_cleaners_leave_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "old").write_text("x")
    os.utime(tmp_path / "in" / "old", (1, 1))
    marker = tmp_path / "marker"
    marker.touch()
    assert unpack(pack(tmp_path / "in"), tmp_path / "out") == 0
    assert (tmp_path / "out" / "old").stat().st_mtime >= marker.stat().st_mtime - 2


def test_caches_and_history_stay_behind(tmp_path: Path) -> None:
    for name in ("__pycache__/a.pyc", ".git/config", "package/__pycache__/b.pyc", "package/kept.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "package" / ".git").write_text("gitdir: elsewhere")
    assert unpack(pack(tmp_path), tmp_path / "out") == 0
    assert list(tree(tmp_path / "out")) == ["package", "package/kept.py"]


def test_links_inside_the_tree_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "v1").write_text("one")
    (source / "current").symlink_to("data/v1")
    (source / "data" / "up").symlink_to("../data")
    assert unpack(pack(source), tmp_path / "out") == 0
    assert (tmp_path / "out" / "current").read_text() == "one"
    assert os.readlink(tmp_path / "out" / "data" / "up") == "../data"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "../source-2/x", "{source}/inside"])
def test_links_that_lead_outside_are_refused_by_name(tmp_path: Path, target: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "inside").write_text("x")
    (source / "link").symlink_to(target.format(source=source))
    with pytest.raises(ConfigurationError, match=r"link .*source/link leads to"):
        pack(source)


def test_what_cannot_be_carried_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.py"):
        pack(tmp_path / "missing.py")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="pipe is neither"):
        pack(tmp_path)


def test_the_limit_counts_all_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 60)
    (tmp_path / "b").write_bytes(b"x" * 40)
    assert pack(tmp_path, limit_bytes=100)
    with pytest.raises(ConfigurationError, match="more than 99 bytes"):
        pack(tmp_path, limit_bytes=99)


def test_a_damaged_archive_or_place_has_a_status(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(1000))
    data = pack(tmp_path / "a")
    assert unpack(data[: len(data) // 2], tmp_path / "out") != 0
    assert unpack(data[:100] + b"\0" + data[101:], tmp_path / "out2") != 0
    (tmp_path / "file").write_text("x")
    assert unpack(data, tmp_path / "file" / "below") != 0
    assert quote(str(tmp_path / "out")) in unpack_commands(data, str(tmp_path / "out"))
