"""Users of a directory: SSSD's configuration, the password's way, and what a server that is silent does."""

from __future__ import annotations

import configparser
import os
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap.command import CommandError, run
from node.bootstrap.context import Context
from node.bootstrap.report import BootReport, file_sink
from node.bootstrap.vm import directory
from node.design.directory import SECRET, Directory
from node.design.folders import Folders
from node.design.model import Access
from node.system import ports
from tests.support import slapd
from tests.support.doubles import FakeServices, design, settings

LDAP = Directory(
    "example", ("ldaps://one:636", "ldaps://two"), "dc=example,dc=com", "rfc2307", slapd.READER, "/secret",
    "(memberOf=cn=hpc,dc=example,dc=com)", "ca.pem",
)  # fmt: skip


class Machine:
    """A machine's commands: what was called, and how ldapwhoami ends."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.status = 0

    def __call__(self, *argv: str, env: Mapping[str, str] | None = None, **_options: Any) -> str:
        self.calls.append(argv)
        if argv[0] == "ldapwhoami":
            assert env is not None
            assert env["LDAPTLS_REQCERT"] == "demand"
            if self.status:
                raise CommandError("ldapwhoami …: exit status\nldap_sasl_bind: Can't contact", self.status)
        return ""

    def named(self, name: str) -> list[str]:
        return [" ".join(call) for call in self.calls if call[0] == name]


@pytest.fixture
def commands() -> Machine:
    return Machine()


@pytest.fixture
def machine(tmp_path: Path, commands: Machine) -> Callable[..., Context]:
    def make(role: str = "login", its: Directory | None = LDAP, host: str = "login-0") -> Context:
        chosen = replace(design(), isolation="container", access=Access(directory=its))
        made = settings(tmp_path, chosen)
        folders = Folders(made)
        ca = Path(str(folders.code)) / "directory/ca.pem"
        ca.parent.mkdir(parents=True, exist_ok=True)
        ca.write_text("an authority\n")
        report = BootReport(host, role, [file_sink(tmp_path / "report.json")])
        return Context(made, tmp_path / "s.json", role, host, folders, FakeServices(), report, commands)

    return make


def sections(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=True)
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_sssd_asks_by_tls_with_the_password_of_the_store(
    machine: Callable[..., Context], commands: Machine, tmp_path: Path
) -> None:
    context = machine()
    directory.keep(context, b"100 % secret; # =x\n")
    directory.prepare(context)
    file = context.at(directory.CONF)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    domain = sections(file.read_text())["domain/example"]
    assert (
        domain
        | {
            "ldap_uri": "ldaps://one:636, ldaps://two",
            "ldap_tls_reqcert": "demand",
            "ldap_tls_cacert": str(context.at(directory.CA)),
            "ldap_default_bind_dn": slapd.READER,
            "ldap_default_authtok": "100 % secret; # =x",
            "access_provider": "ldap",
            "ldap_access_order": "filter",
            "ldap_access_filter": "(memberOf=cn=hpc,dc=example,dc=com)",
            "cache_credentials": "true",
            "min_id": "1000",
            "override_homedir": f"{context.settings.site.shared}/%u",
        }
        == domain
    )
    password = context.at(directory.PASSWORD)
    assert (stat.S_IMODE(password.stat().st_mode), password.read_text()) == (0o600, "100 % secret; # =x")
    enabled = "systemctl enable sssd.service"
    assert commands.named("systemctl")[:2] == [enabled, "systemctl restart sssd.service"]
    # A boot that finds all as it was restarts nothing.
    commands.calls.clear()
    directory.prepare(context)
    assert commands.named("systemctl") == [enabled, "systemctl start sssd.service"]


def test_active_directory_has_numbers_by_its_sids_and_locks_who_is_disabled() -> None:
    text = directory.conf_text(replace(LDAP, ldap_schema="ad", access_filter=None), "/home", "/ca", "x")
    domain = sections(text)["domain/example"]
    assert (domain["ldap_id_mapping"], domain["ldap_schema"]) == ("true", "ad")
    assert (domain["access_provider"], domain["ldap_access_order"]) == ("ldap", "expire")
    assert domain["ldap_account_expire_policy"] == "ad"
    plain = replace(LDAP, access_filter=None, bind_dn=None, password_secret=None)
    domain = sections(directory.conf_text(plain, "/home", "/ca", ""))["domain/example"]
    assert domain["access_provider"] == "permit"
    assert "ldap_default_authtok" not in domain


def test_a_server_that_is_silent_is_named_and_stops_nodes_alone(
    machine: Callable[..., Context], commands: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "NODE_PAUSE_SECONDS", 0.0)
    commands.status = directory.CANNOT_CONTACT
    login = machine()
    directory.keep(login, b"x")
    directory.prepare(login)
    assert login.report.content["facts"]["directory"] == (
        "the directory example does not answer (ldaps://one:636: ldap_sasl_bind: Can't contact; "
        "ldaps://two: ldap_sasl_bind: Can't contact); users whom SSSD has cached can log in"
    )
    commands.calls.clear()
    with pytest.raises(ConnectionError, match="the directory example does not answer"):
        directory.prepare(machine("compute", host="debug-0"))
    assert len(commands.named("ldapwhoami")) == 2 * directory.NODE_ATTEMPTS
    # A password that is wrong is as bad for a node. Who has none asks only whether a server answers.
    commands.status = 49
    with pytest.raises(ConnectionError):
        directory.prepare(machine("compute", host="debug-0"))
    assert directory.problem(LDAP, "/ca", commands) == ""


def test_a_directory_that_leaves_the_stack_file_is_asked_no_longer(
    machine: Callable[..., Context], commands: Machine
) -> None:
    context = machine()
    directory.keep(context, b"x")
    directory.prepare(context)
    commands.calls.clear()
    directory.prepare(machine(its=None))
    assert commands.named("systemctl")[0] == "systemctl disable --now sssd.service"
    assert not any(context.at(name).exists() for name in (directory.CONF, directory.PASSWORD, directory.CA))
    commands.calls.clear()
    directory.prepare(machine(its=None))
    assert commands.calls == []


class Store:
    """A cloud's secret store.

    Attributes:
        content: What the secret is; an error is raised.
    """

    def __init__(self) -> None:
        self.content: bytes | OSError | None = b"from the store\n"
        self.asked: list[str] = []

    def secret(self, name: str) -> Store:
        self.asked.append(name)
        return self

    def get(self) -> bytes | None:
        if isinstance(self.content, OSError):
            raise self.content
        return self.content


def test_the_controller_takes_the_password_from_the_store_or_goes_on_with_the_last_one(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr("node.bootstrap.vm.clouds.of", lambda _settings: store)
    context = machine("controller", host="controller")
    store.content = OSError("403: not allowed")
    with pytest.raises(OSError, match="password_secret: /secret cannot be read: 403: not allowed"):
        directory.take_from_store(context)
    store.content = None
    with pytest.raises(OSError, match="it has no value"):
        directory.take_from_store(context)
    store.content = b"from the store\n"
    file = directory.take_from_store(context)
    assert file is not None
    assert (file.read_text(), file.parent.stat().st_mode & 0o777) == ("from the store", 0o700)
    # The local stack's store has it by a name of ours.
    assert set(store.asked) == {SECRET}
    store.content = OSError("away")
    assert directory.take_from_store(context) == file
    assert directory.take_from_store(machine("controller", None)) is None


@pytest.mark.parametrize("password", [b"", b"\n", b"one\ntwo", b"a\0b"])
def test_a_password_is_one_line(machine: Callable[..., Context], password: bytes) -> None:
    with pytest.raises(ValueError, match="in one line"):
        directory.keep(machine(), password)


@slapd.needs_slapd
def test_a_real_server_answers_its_readers_by_tls_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = slapd.Slapd(tmp_path, "127.0.0.1", slapd.user("ada", 5001), port=port)
    if Path("/") != slapd.ROOT:
        monkeypatch.setenv("PATH", f"{slapd.ROOT / 'usr/bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(slapd.ROOT / "usr/lib/x86_64-linux-gnu"))
    password = tmp_path / "password"
    password.write_text(slapd.PASSWORD)
    password.chmod(0o600)
    its = Directory("example", (server.uri,), slapd.BASE, bind_dn=slapd.READER, password_secret="x")
    authority = str(tmp_path / "authority.pem")
    server.start()
    try:
        assert directory.problem(its, authority, run) == ""
        assert directory.problem(its, authority, run, str(password)) == ""
        assert "Can't contact" in directory.problem(its, directory.SYSTEM_CA, run), "another authority"
        password.write_text("wrong")
        assert "Invalid credentials" in directory.problem(its, authority, run, str(password))
    finally:
        server.stop()
    assert not ports.free(port) or "Can't contact" in directory.problem(its, authority, run)
