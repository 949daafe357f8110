"""Where to log in by the SSH configuration: what ssh would do, and what is refused."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.remote.ssh_config import Login, address_of
from dagster_slurm.remote.ssh_login import SshAddress


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "site_key").write_text("a key")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def configured(home: Path, text: str, **stated: object) -> SshAddress:
    """What ``site`` means with this configuration."""
    (home / ".ssh" / "config").write_text(text)
    return address_of(Login(**{"host": "site", **stated}))  # type: ignore[arg-type]


def hops(address: SshAddress) -> list[str]:
    return [str(hop) for hop in address.through]


SITE = """
Host site
    HostName login.example.org
    Port 2222
    User ada
    IdentityFile ~/.ssh/missing
    IdentityFile ~/.ssh/site_key
"""


def test_an_alias_is_filled_in_from_the_configuration(home: Path) -> None:
    address = configured(home, SITE)
    assert str(address) == "ada@login.example.org:2222"
    assert address.key_file == str(home / ".ssh" / "site_key")
    assert (address.known_hosts, address.through) == (None, ())


def test_what_is_stated_wins(home: Path) -> None:
    key = str(home / "other")
    address = configured(home, SITE, port=22, user="grace", key_file=key, known_hosts="/known", password="secret")
    assert str(address) == "grace@login.example.org:22"
    assert (address.key_file, address.known_hosts, address.password) == (key, "/known", "secret")
    assert "secret" not in repr(address)


def test_without_a_configuration_only_the_user_has_to_be_stated(home: Path) -> None:
    assert str(address_of(Login(host="plain", user="ada"))) == "ada@plain:22"
    with pytest.raises(ConfigurationError, match="No user is named for plain") as caught:
        address_of(Login(host="plain"))
    assert caught.value.field == "SlurmComputeResource.user"
    other = home / "other_config"
    other.write_text("Host plain\n User grace\n")
    assert address_of(Login(host="plain", config_file=str(other))).user == "grace"


def test_jump_hosts_are_looked_up_too_and_get_no_password(home: Path) -> None:
    text = SITE + "    ProxyJump gate, eve@10.0.0.7:2200\n\nHost gate\n    HostName gate.example.org\n    Port 443\n"
    address = configured(home, text, password="secret", passphrase="opens keys")
    assert hops(address) == ["ada@gate.example.org:443", "eve@10.0.0.7:2200"]
    assert [hop.password for hop in address.through] == [None, None]
    assert [hop.passphrase for hop in address.through] == ["opens keys", "opens keys"]
    assert [hop.through for hop in address.through] == [(), ()]


def test_a_stated_jump_host_wins_and_none_turns_it_off(home: Path) -> None:
    text = SITE + "    ProxyJump gate\n"
    assert hops(configured(home, text, proxy_jump="ssh://eve@[fe80::1]:2200")) == ["eve@fe80::1:2200"]
    assert hops(configured(home, text, proxy_jump="none")) == []
    assert hops(configured(home, SITE, proxy_jump="gate")) == ["ada@gate:22"]


def test_the_first_jump_host_may_need_one_itself(home: Path) -> None:
    text = SITE + "    ProxyJump inner\n\nHost inner\n    User in\n    ProxyJump outer\n\nHost outer\n    User out\n"
    assert hops(configured(home, text)) == ["out@outer:22", "in@inner:22"]


def test_a_circle_of_jump_hosts_is_refused(home: Path) -> None:
    text = SITE + "    ProxyJump gate\n\nHost gate\n    ProxyJump site\n"
    with pytest.raises(ConfigurationError, match="More than 5 jump hosts lead to") as caught:
        configured(home, text)
    assert caught.value.field == "SlurmComputeResource.proxy_jump"


@pytest.mark.parametrize("hop", ["@gate", "gate:x", "gate:0", "gate:70000", "eve@", "", "a,,b"])
def test_what_is_no_jump_host_is_refused(home: Path, hop: str) -> None:
    if not hop:
        assert hops(configured(home, SITE, proxy_jump=hop)) == []
        return
    with pytest.raises(ConfigurationError, match="is no jump host"):
        configured(home, SITE, proxy_jump=hop)


def test_a_proxy_command_is_refused_unless_jump_hosts_are_stated(home: Path) -> None:
    text = SITE + "    ProxyCommand nc -X connect %h %p\n"
    with pytest.raises(ConfigurationError, match="through a ProxyCommand") as caught:
        configured(home, text)
    assert caught.value.remedy == "use ProxyJump there, or state proxy_jump."
    assert hops(configured(home, text, proxy_jump="gate")) == ["ada@gate:22"]
    assert configured(home, SITE + "    ProxyCommand none\n").through == ()


@pytest.mark.parametrize(("text", "said"), [("Host site\n Port ssh\n", "has the port 'ssh'"), ("nonsense\n", "cannot")])
def test_a_wrong_configuration_is_named(home: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        configured(home, text, user="ada")
    assert caught.value.field == "SlurmComputeResource.ssh_config"


def test_a_missing_file_is_an_error_only_when_it_was_named(home: Path) -> None:
    assert address_of(Login(host="plain", user="ada", config_file="/dev/null")).port == 22
    with pytest.raises(ConfigurationError, match="cannot be read"):
        address_of(Login(host="plain", user="ada", config_file=str(home / "none")))


def test_known_hosts_of_the_configuration_are_used_when_they_exist(home: Path) -> None:
    site = home / ".ssh" / "known_site"
    text = SITE + f"    UserKnownHostsFile ~/.ssh/absent {site}\n"
    assert configured(home, text).known_hosts is None
    site.write_text("")
    assert configured(home, text).known_hosts == str(site)
    assert attrs.evolve(configured(home, text), port=1).known_hosts == str(site)
