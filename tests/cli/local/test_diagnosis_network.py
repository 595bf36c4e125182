"""The doctor's checks of loopback, names, ports and the clock."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from pathlib import Path

import pytest

from cli.findings import Severity
from cli.providers.local.diagnosis import host as network
from node.design.model import Partition
from node.slurm.addressing import ports_needed
from node.system import ports
from operations.local import run_directory
from operations.local.run_directory import FIRST_PORT, LAST_PORT, RunDirectory
from tests.support import sentences
from tests.support.doubles import design
from tests.support.fake_host import host, seen

DESIGN = design()
HOSTS = "127.0.0.1 localhost\n127.0.1.1 Here here.example # mine\n::1 localhost ip6\n"


def test_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for boots in (True, False):
        assert seen(network.answers(boots=boots)) == {"network.loopback": "fine"}

    def unreachable(*_: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    (found,) = network.answers(boots=False)
    assert seen([found]) == {"network.loopback": "stops"}
    sentences.finding(found, "network.loopback", Severity.STOPS)


def test_names(tmp_path: Path) -> None:
    def found(hosts: str, name: str = "here", switch: str = "hosts: files dns\n") -> dict[str, str]:
        files = {"/etc/hosts": hosts, "/etc/nsswitch.conf": switch}
        return seen(network.names(host(tmp_path, files), name))

    assert found(HOSTS) == {}
    assert found(HOSTS, "HERE") == {}
    assert found(HOSTS, "mine") == {"network.hostname": "warns"}, "a comment is no name"
    assert found(HOSTS, "other", "passwd: files\nhosts: files myhostname\n") == {}
    assert found("127.0.0.1 here\n::1 localhost\n") == {"network.localhost": "warns"}
    assert found("") == {"network.localhost": "warns", "network.hostname": "warns"}


def test_ports_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "0123456789")
    (found,) = network.free_ports(host(tmp_path), run, DESIGN)
    assert seen([found]) == {"ports.free": "fine"}
    sentences.finding(found, "ports.free", Severity.FINE, 1 + ports_needed(DESIGN))

    monkeypatch.setattr(ports, "free", lambda _: False)
    (found,) = network.free_ports(host(tmp_path), run, DESIGN)
    assert seen([found]) == {"ports.free": "stops"}
    sentences.finding(found, "ports.free", Severity.STOPS)
    huge = design(Partition("debug", "local.small", 1, 100, 0, LAST_PORT))
    (found,) = network.free_ports(host(tmp_path), run, huge)
    assert "lower nodes.max" in found.found + (found.cure or "")


def test_a_port_that_is_really_taken_is_gone_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program listens where the search would begin."""
    # A name of its own, for the search begins by it: another run of this test may be on this machine.
    run = RunDirectory(tmp_path / secrets.token_hex(5))
    count = 1 + ports_needed(DESIGN)
    first = run_directory.free_range(count, int(run.path.name, 16))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        (found,) = network.free_ports(host(tmp_path), run, DESIGN)
        assert seen([found]) == {"ports.free": "fine"}
        assert f"from {first} on" not in found.found


def test_a_cluster_that_is_up_has_its_ports(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "0123456789")
    run.path.mkdir()
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        base = mine.getsockname()[1]
        (run.path / "ports.json").write_text(json.dumps({"base": base, "count": 200}))
        (found,) = network.free_ports(host(tmp_path), run, DESIGN)
        sentences.finding(found, "ports.free", Severity.FINE, base, base + 199)
    for text in ("{", '{"base": "x", "count": 1}', '{"base": 1}'):
        (run.path / "ports.json").write_text(text)
        (found,) = network.free_ports(host(tmp_path), run, DESIGN)
        sentences.finding(found, "ports.free", Severity.FINE)


def test_ports_for_outgoing_connections(tmp_path: Path) -> None:
    def found(span: str) -> dict[str, str]:
        files = {"/proc/sys/net/ipv4/ip_local_port_range": span}
        return seen(network.free_ports(host(tmp_path, files), RunDirectory(tmp_path / "0"), DESIGN))

    assert found("32768\t60999\n") == {"ports.free": "fine"}
    assert found("1024\t65535\n") == {"ports.free": "fine", "ports.outgoing": "warns"}
    assert found(f"1024\t{FIRST_PORT - 1}\n") == {"ports.free": "fine"}


def test_the_clock(tmp_path: Path) -> None:
    newest = 1_700_000_000
    for name in ("cluster", "uv.lock", "Pulumi.yaml"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (newest, newest))
    assert seen(network.clock(tmp_path, newest + 5.0)) == {"clock.time": "fine"}
    assert seen(network.clock(tmp_path, newest - 86000.0)) == {"clock.time": "fine"}, (
        "a time zone is no fault"
    )
    (found,) = network.clock(tmp_path, 0.0)
    assert seen([found]) == {"clock.time": "warns"}
    sentences.finding(found, "clock.time", Severity.WARNS, "1970-01-01", "00:00")


def test_whether_nodes_know_each_other_by_name(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "ab")
    run.path.mkdir()
    (found,) = network.node_names(run, lambda _first: None)
    assert (found.check, found.severity.name) == ("network.node_names", "FINE")
    says = r"nodes know .* by name, with addresses from 127\.[\d.]+ on, and each has a /tmp of its own"
    assert re.fullmatch(says, found.found), found.found
    assert list(run.path.iterdir()) == [], "doctor changes nothing"

    sentence = (
        "nodes do not know each other by name here, and all else works: the kernel says no; ask it nicely"
    )
    (found,) = network.node_names(run, lambda _first: sentence)
    assert (found.severity.name, found.found, found.cure) == (
        "WARNS",
        "nodes do not know each other by name here, and all else works: the kernel says no",
        "ask it nicely",
    )


def test_programs_without_slurm_conf() -> None:
    assert list(network.slurm_folder(lambda: None)) == []
    (found,) = network.slurm_folder(lambda: "no folder; as root: mkdir it")
    assert (found.check, found.severity.name, found.cure) == ("slurm.folder", "WARNS", "as root: mkdir it")
