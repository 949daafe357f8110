"""Which keys a known_hosts file records for a host."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.remote.known_hosts import keys_for_host, known_name, read_known_keys

KEY = base64.b64encode(b"key one").decode()
OTHER = base64.b64encode(b"key two").decode()


@pytest.mark.parametrize(
    ("names", "host", "port", "matches"),
    [
        ("login.site.edu", "login.site.edu", 22, True),
        ("login.site.edu", "LOGIN.site.edu", 22, True),
        ("login.site.edu", "login.site.edu", 2222, False),
        ("[login.site.edu]:2222", "login.site.edu", 2222, True),
        ("[login.site.edu]:2222", "login.site.edu", 22, False),
        ("a,login.site.edu,10.0.0.1", "10.0.0.1", 22, True),
        ("login?.site.edu", "login2.site.edu", 22, True),
        ("*.site.edu", "login2.site.edu", 22, True),
        ("*.site.edu,!login3.site.edu", "login3.site.edu", 22, False),
        ("!login3.site.edu,*.site.edu", "login3.site.edu", 22, False),
        ("[*.site.edu]:2222", "login2.site.edu", 2222, True),
        ("*site.edu", "siteXedu", 22, False),
        ("loginXsite.edu", "login.site.edu", 22, False),
        ("login[12]", "login1", 22, False),
        ("|1|bm9uc2Vuc2U=|bm9uc2Vuc2U=", "login.site.edu", 22, False),
        ("|1|broken", "login.site.edu", 22, False),
    ],
)
def test_names_and_patterns(names: str, host: str, port: int, matches: bool) -> None:
    known = keys_for_host([f"{names} ssh-ed25519 {KEY} comment"], host, port)
    assert known.trusts("ssh-ed25519", b"key one") is matches


@pytest.mark.parametrize("port", [22, 2222])
def test_hashed_names_as_ssh_keygen_writes_them(tmp_path: Path, port: int) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    key_type, key, _ = (tmp_path / "key.pub").read_text().split(" ", 2)
    hosts = tmp_path / "known_hosts"
    hosts.write_text(f"{known_name('login.site.edu', port)} {key_type} {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", hosts], check=True, capture_output=True)
    assert "login" not in hosts.read_text()
    known = read_known_keys(str(hosts), "login.site.edu", port)
    assert known.trusts(key_type, base64.b64decode(key))
    assert read_known_keys(str(hosts), "login2.site.edu", port).trusted == ()


def test_M_7_only_exactly_the_recorded_keys_are_trusted() -> None:
    lines = [
        "# login ssh-ed25519 " + OTHER,
        "",
        f"login ssh-ed25519 {KEY}",
        f"login ssh-rsa {OTHER}",
        "login ssh-ed25519",
        "login ssh-ed25519 not/base64!",
        f"@cert-authority login ecdsa-sha2-nistp256 {OTHER}",
    ]
    known = keys_for_host(lines, "login", 22)
    assert known.trusts("ssh-ed25519", b"key one")
    assert known.trusts("ssh-rsa", b"key two")
    assert not known.trusts("ssh-ed25519", b"key two")
    assert known.key_types == {"ssh-ed25519", "ssh-rsa"}


def test_a_revoked_key_is_not_trusted_even_when_recorded() -> None:
    known = keys_for_host([f"login ssh-ed25519 {KEY}", f"@revoked * ssh-ed25519 {KEY}"], "login", 22)
    assert not known.trusts("ssh-ed25519", b"key one")


def test_a_given_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere") as caught:
        read_known_keys(str(tmp_path / "nowhere"), "login", 22)
    assert caught.value.field == "SlurmComputeResource.known_hosts"


def test_without_a_given_file_the_users_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_known_keys(None, "login.nowhere.invalid", 22).trusted == ()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(f"login.nowhere.invalid ssh-ed25519 {KEY}\n")
    assert read_known_keys(None, "login.nowhere.invalid", 22).trusts("ssh-ed25519", b"key one")
