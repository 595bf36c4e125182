"""The doctor's checks of loopback and ports."""

from __future__ import annotations

import json
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
from operations.local.run_directory import LAST_PORT, RunDirectory
from tests.support import sentences
from tests.support.doubles import design
from tests.support.fake_host import seen

DESIGN = design()


def test_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for boots in (True, False):
        assert seen(network.answers(boots=boots)) == {"network.loopback": "fine"}

    def unreachable(*_: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    (found,) = network.answers(boots=False)
    assert seen([found]) == {"network.loopback": "stops"}
    sentences.finding(found, "network.loopback", Severity.STOPS)


def test_ports_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "0123456789")
    (found,) = network.free_ports(run, DESIGN)
    assert seen([found]) == {"ports.free": "fine"}
    sentences.finding(found, "ports.free", Severity.FINE, 1 + ports_needed(DESIGN))

    monkeypatch.setattr(ports, "free", lambda _: False)
    (found,) = network.free_ports(run, DESIGN)
    assert seen([found]) == {"ports.free": "stops"}
    sentences.finding(found, "ports.free", Severity.STOPS)
    huge = design(Partition("debug", "local.small", 1, 100, 0, LAST_PORT))
    (found,) = network.free_ports(run, huge)
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
        (found,) = network.free_ports(run, DESIGN)
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
        (found,) = network.free_ports(run, DESIGN)
        sentences.finding(found, "ports.free", Severity.FINE, base, base + 199)
    for text in ("{", '{"base": "x", "count": 1}', '{"base": 1}'):
        (run.path / "ports.json").write_text(text)
        (found,) = network.free_ports(run, DESIGN)
        sentences.finding(found, "ports.free", Severity.FINE)
