"""The hosts files of the nodes that are up follow Slurm, and the queries to a name server."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from node.design import names
from node.design.folders import Folders
from node.elastic import dns_hosts
from node.elastic.daemon import Elastic
from node.elastic.dns_hosts import DnsHosts, addresses
from node.slurm.control import SlurmError
from node.slurm.states import NodeState
from node.system import rpc
from tests.support.checkout import until
from tests.support.doubles import FakeControl, FakeDriver, fast_design, settings
from tests.support.doubles import node as state

SUFFIX = "t.slurm-stacks.internal"


def node(name: str, address: str, base: str = "IDLE", *flags: str) -> NodeState:
    return dataclasses.replace(state(name, base, "CLOUD", *flags), address=address)


UP = node("debug-0", "10.0.1.7")


class Server:
    """A name server that knows the files' content after some number of queries."""

    def __init__(self, file: Path, late: int = 0) -> None:
        self.file, self.left, self.asked = file, late, 0

    def __call__(self, name: str) -> str | None:
        self.asked += 1
        self.left -= 1
        texts = [file.read_text() for file in self.file.parent.glob("nodes-*")]
        lines = [line.split() for text in texts for line in text.splitlines()]
        return {line[1]: line[0] for line in lines}.get(name) if self.left < 0 else None


@pytest.fixture
def control() -> FakeControl:
    return FakeControl([UP])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "names" / "nodes-debug-0"


def made(control: FakeControl, file: Path, served: Callable[[str], str | None] | None = None) -> DnsHosts:
    return DnsHosts(
        control.nodes_since, control.named_nodes, file.parent, SUFFIX, served or Server(file), 3600.0
    )


def test_names_are_those_of_nodes_that_have_registered_and_stay() -> None:
    shown = {
        "debug-0": UP,
        "debug-1": node("debug-1", "10.0.1.8", "MIXED", "DRAIN"),
        "debug-2": node("debug-2", "10.0.1.9", "DOWN", "NOT_RESPONDING"),
        # Slurm keeps the address of a node until it is off, but the machine ends before that.
        "debug-3": node("debug-3", "10.0.1.10", "IDLE", "POWERING_DOWN"),
        "debug-4": node("debug-4", "10.0.1.11", "IDLE", "POWERED_DOWN"),
        "debug-5": node("debug-5", "10.0.1.12", "ALLOCATED", "POWERING_UP"),
        # While Slurm knows no address it shows the node's name.
        "debug-6": node("debug-6", "debug-6"),
        "debug-7": node("debug-7", ""),
        "debug-8": node("debug-8", "fd00::8"),
    }
    assert addresses(shown) == {"debug-0": "10.0.1.7", "debug-1": "10.0.1.8", "debug-2": "10.0.1.9"}


def test_the_file_follows_and_is_written_when_something_has_changed(control: FakeControl, file: Path) -> None:
    seen = made(control, file)
    assert seen.nodes() == {"debug-0": UP}
    assert file.read_text() == f"10.0.1.7 debug-0.{SUFFIX}\n"
    first = file.stat()
    control.state["debug-1"] = node("debug-1", "10.0.1.8", "ALLOCATED", "POWERING_UP")
    seen.nodes()
    assert file.stat().st_ino == first.st_ino, "nothing that it says has changed"
    control.state["debug-1"] = node("debug-1", "10.0.1.8", "ALLOCATED")
    control.state["debug-0"] = node("debug-0", "10.0.1.9")
    seen.nodes()
    assert file.read_text().splitlines() == [
        f"10.0.1.9 debug-0.{SUFFIX}", f"10.0.1.8 debug-1.{SUFFIX}",
    ]  # fmt: skip
    control.state.clear()
    seen.nodes()
    assert file.read_text() == ""
    assert [path.name for path in file.parent.iterdir()] == ["nodes-debug-0"]


def test_a_change_of_one_node_touches_the_names_of_a_hundred(control: FakeControl, file: Path) -> None:
    control.state = {
        name: node(name, f"10.0.{number // 250}.{1 + number % 250}")
        for number in range(1000)
        for name in [f"v100-{number}"]
    }
    server = Server(file)
    seen = made(control, file, server)
    seen.nodes()
    before = {path.name: path.stat().st_ino for path in file.parent.iterdir()}
    assert set(before) == {f"nodes-v100-{hundred}" for hundred in range(10)}
    control.state["v100-123"] = node("v100-123", "10.0.9.9")
    seen.nodes()
    after = {path.name: path.stat().st_ino for path in file.parent.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"nodes-v100-1"}
    assert server(f"v100-123.{SUFFIX}") == "10.0.9.9"
    control.state.clear()
    made(control, file).nodes()
    assert {path.read_text() for path in file.parent.iterdir()} == {""}, "another daemon's files are emptied"


def test_after_a_crash_the_file_is_what_slurm_says_now(control: FakeControl, file: Path) -> None:
    file.parent.mkdir()
    file.write_text("")  # as after a power failure
    made(control, file).nodes()
    assert "10.0.1.7" in file.read_text()
    kept = file.stat()
    made(control, file).nodes()
    assert file.stat().st_ino == kept.st_ino, "a daemon that starts again finds it right"
    control.state.clear()
    made(control, file).nodes()
    assert file.read_text() == "", "the node was given back meanwhile"


def test_a_reading_ends_when_the_new_names_are_served(control: FakeControl, file: Path) -> None:
    server = Server(file, late=5)
    seen = made(control, file, server)
    seen.nodes()
    assert server.asked == 6
    seen.nodes()
    assert server.asked == 6, "nothing is new"
    control.state.clear()
    seen.nodes()
    assert server.asked == 6, "nobody waits for the end of a name"


def test_without_a_name_server_jobs_start_all_the_same(
    control: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dns_hosts, "SERVED_SECONDS", 0.01)
    assert made(control, file, lambda _name: None).nodes() == {"debug-0": UP}
    assert "the name server does not know debug-0 yet" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_keeps_no_job_from_starting(
    control: FakeControl, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.parent.write_text("")
    seen = made(control, file)
    assert seen.nodes() == {"debug-0": UP}
    assert str(file.parent) in capsys.readouterr().out
    file.parent.unlink()
    seen.nodes()
    assert "10.0.1.7" in file.read_text(), "as soon as it can be"


def test_an_older_reading_is_never_written_after_a_newer_one(control: FakeControl, file: Path) -> None:
    """Two threads read: one for waiting jobs, and one periodically."""
    begun, go_on = threading.Event(), threading.Event()
    readings = iter(["10.0.1.7", "10.0.1.8"])

    def read(_since: float) -> dict[str, NodeState]:
        address = next(readings)
        if address == "10.0.1.7":
            begun.set()
            assert go_on.wait(60)
        return {"debug-0": node("debug-0", address)}

    seen = DnsHosts(read, control.named_nodes, file.parent, SUFFIX, Server(file), 3600.0)
    threads = [threading.Thread(target=seen.nodes) for _ in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert "10.0.1.8" in file.read_text()


def test_another_look_is_due_soon_while_a_node_comes_up_or_slurm_is_away(
    control: FakeControl, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = made(control, file)
    assert not seen.look()
    control.state["debug-1"] = node("debug-1", "debug-1", "ALLOCATED", "POWERING_UP")
    assert seen.look()
    del control.state["debug-1"]
    control.error = SlurmError(["scontrol"], 1, "Unable to contact slurm controller")
    assert seen.look()
    assert capsys.readouterr().out == "", "slurmctld starts after the daemon"
    control.error = RuntimeError("a surprise")
    assert seen.look()
    assert "a surprise" in capsys.readouterr().out


def test_anothers_reading_does_while_no_node_comes_up(
    control: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns_hosts, "POWERING_UP_SECONDS", 0.005)
    asked: list[float] = []

    def read(since: float) -> Mapping[str, NodeState]:
        asked.append(since)
        return control.nodes()

    def next_looks() -> list[float]:
        begun = len(asked)
        until(lambda: len(asked) >= begun + 4, 60, "looks", 0.005)
        return asked[begun + 2 :]

    seen = DnsHosts(read, control.named_nodes, file.parent, SUFFIX, Server(file), 0.02)
    threading.Thread(target=seen.run, daemon=True).start()
    assert max(next_looks()) < math.inf
    assert asked[0] == math.inf
    control.state["debug-1"] = node("debug-1", "debug-1", "ALLOCATED", "POWERING_UP")
    assert min(next_looks()) == math.inf, "its name is late by no more than a pause"


def test_who_waits_for_some_nodes_has_their_names_beside_all_others(control: FakeControl, file: Path) -> None:
    coming = {name: node(name, name, "ALLOCATED", "POWERING_UP") for name in ("debug-1", "debug-2")}
    control.state.update(coming)
    named: dict[str, NodeState] = {}
    seen = DnsHosts(control.nodes_since, lambda _: dict(named), file.parent, SUFFIX, Server(file), 3600.0)

    def lines() -> list[str]:
        return [line.split()[0] for line in file.read_text().splitlines()]

    assert seen.named(["debug-1"]) == control.state, "at first all are read: others are up"
    assert lines() == ["10.0.1.7"]
    named["debug-1"] = node("debug-1", "10.0.1.8", "ALLOCATED")
    assert seen.named(["debug-1"]) == named
    assert lines() == ["10.0.1.7", "10.0.1.8"]
    named["debug-1"] = node("debug-1", "10.0.1.9", "ALLOCATED")
    seen.named(["debug-1"])
    assert lines() == ["10.0.1.7", "10.0.1.9"]
    named["debug-1"] = coming["debug-1"]
    seen.named(["debug-1"])
    assert lines() == ["10.0.1.7"]


def test_the_newest_reading_counts_though_it_is_the_same_as_an_earlier_one(
    control: FakeControl, file: Path
) -> None:
    """Between two equal readings of all nodes, or of some, one of the other kind has shown something else."""
    everything = {"debug-0": UP, "debug-1": node("debug-1", "debug-1", "ALLOCATED", "POWERING_UP")}
    some = {"debug-1": node("debug-1", "10.0.1.8", "ALLOCATED")}
    seen = DnsHosts(lambda _: everything, lambda _: some, file.parent, SUFFIX, Server(file), 3600.0)
    for _ in range(3):
        seen.nodes()
        assert "debug-1" not in file.read_text()
        seen.named(["debug-1"])
        assert "10.0.1.8 debug-1" in file.read_text()
        assert "10.0.1.7 debug-0" in file.read_text()


def test_who_waits_for_all_nodes_that_come_up_spares_a_reading_of_all(
    control: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = made(control, file)
    control.state["debug-1"] = node("debug-1", "debug-1", "ALLOCATED", "POWERING_UP")
    seen.nodes()
    soon, spared = seen._asked_at + dns_hosts.POWERING_UP_SECONDS, dns_hosts.SPARED_SECONDS
    assert seen._due() == soon
    monkeypatch.setattr(control, "named_nodes", lambda names: {n: control.state[n] for n in names})
    seen = made(control, file)
    seen.nodes()
    seen.named(["debug-0"])
    assert seen._due() < seen._asked_at + spared, "another node comes up"
    seen.named(["debug-1"])
    assert seen._asked_at + spared <= seen._due() < seen._asked_at + spared + 60
    seen.named(["debug-0"])
    assert seen._due() >= seen._asked_at + spared, "one that is watched alone changes nothing"
    seen.expect(["debug-1"])
    assert seen._due() >= seen._asked_at + spared, "it is known to come up"
    seen.expect(["debug-2"])
    assert seen._due() < seen._asked_at + spared
    control.state["debug-2"] = node("debug-2", "debug-2", "ALLOCATED", "POWERING_UP")
    seen.named(["debug-1", "debug-2"])
    assert seen._due() >= seen._asked_at + spared
    monkeypatch.setattr(seen, "_interval", 5.0)
    assert seen._due() == seen._asked_at + 5, "all are read at the interval in any case"
    control.error = SlurmError(["scontrol"], 1, "?")
    seen.look()
    assert seen._due() == seen._asked_at + dns_hosts.POWERING_UP_SECONDS, "what is known is old"


def test_a_node_that_is_asked_for_while_all_are_read_is_read_again(file: Path) -> None:
    """The reading may have begun before Slurm asked for it."""

    asked_for = ["debug-0"]

    def read(_: float) -> Mapping[str, NodeState]:
        while asked_for:
            seen.expect([asked_for.pop()])
        return {}

    seen = DnsHosts(read, lambda _: {}, file.parent, SUFFIX, Server(file), 3600.0)
    assert seen.look()
    assert not seen.look()


def test_who_waits_for_nodes_moves_the_next_look(control: FakeControl, file: Path) -> None:
    seen = DnsHosts(control.nodes_since, control.named_nodes, file.parent, SUFFIX, Server(file), 0.3)
    control.state["debug-1"] = node("debug-1", "debug-1", "ALLOCATED", "POWERING_UP")
    seen.look()
    before = seen._asked_at
    seen.nodes()
    assert seen._asked_at > before


def test_who_asks_for_nodes_has_them_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job waits here: a person powers a node up."""
    monkeypatch.setattr(names, "ask", lambda name, server, seconds: "10.0.1.7")
    monkeypatch.setattr(dns_hosts, "POWERING_UP_SECONDS", 0.005)
    (tmp_path / "requests").mkdir()
    its = settings(tmp_path, fast_design(isolation="vm", provider="aws"))
    control = FakeControl()
    elastic = Elastic(its, control, FakeDriver(), tmp_path)
    assert elastic.names is not None
    monkeypatch.setattr(elastic.names, "_interval", 3600.0)
    threading.Thread(target=elastic.names.run, daemon=True).start()
    file = Path(str(names.folder(Folders(its)))) / "nodes-debug-0"
    until(file.parent.exists, 60, "the first look", 0.005)
    control.state["debug-0"] = node("debug-0", "debug-0", "ALLOCATED", "POWERING_UP")
    elastic.process({"id": "r", "program": "resume", "nodes": "debug-0", "resume_file": None})
    control.state["debug-0"] = UP
    until(lambda: file.exists() and "10.0.1.7" in file.read_text(), 60, "the node's name", 0.005)


def is_told_to_go(elastic: Elastic, job: int, nodes: str) -> bool:
    """Ask as a job's prolog."""
    theirs, ours = socket.socketpair()
    elastic.handle("wait", {"job": job, "nodes": nodes}).keep(rpc.Caller(theirs))
    with ours, ours.makefile() as stream:
        return bool(json.loads(stream.readline())["result"]["over"])


def test_a_job_goes_when_its_nodes_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    its = settings(tmp_path, fast_design(isolation="vm", provider="aws"))
    file = Path(str(names.folder(Folders(its)))) / "nodes-debug-0"
    monkeypatch.setattr(names, "ask", lambda name, server, seconds: Server(file)(name))
    elastic = Elastic(its, FakeControl([UP]), FakeDriver(), tmp_path)
    assert is_told_to_go(elastic, 1, "debug-0")
    assert file.read_text() == f"10.0.1.7 debug-0.{SUFFIX}\n"


def test_process_machines_have_another_way(tmp_path: Path) -> None:
    elastic = Elastic(settings(tmp_path, fast_design()), FakeControl([UP]), FakeDriver(), tmp_path)
    assert elastic.names is None
    assert is_told_to_go(elastic, 1, "debug-0")
    assert list(tmp_path.rglob("names")) == []


# --- queries -----------------------------------------------------------------------------------------------


A = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + bytes([10, 0, 1, 7])
ALIAS = b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, 0, 2) + b"\xc0\x0c"
SPELT = b"\x01x\x01y\x00" + struct.pack(">HHIH", 1, 1, 0, 4) + bytes([10, 0, 1, 8])


@pytest.fixture
def answers() -> Iterator[tuple[int, list[Callable[[bytes], bytes]]]]:
    """Return the port of a name server that gives this answer to its one query."""
    made: list[Callable[[bytes], bytes]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            question, asker = server.recvfrom(4096)
            server.sendto(made.pop()(question), asker)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], made


def answer(*records: bytes) -> Callable[[bytes], bytes]:
    return lambda q: q[:2] + struct.pack(">5H", 0x8580, 1, len(records), 0, 0) + q[12:] + b"".join(records)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(A), "10.0.1.7"),
        (answer(ALIAS, A), "10.0.1.7"),
        (answer(SPELT), "10.0.1.8"),
        (answer(), None),
        (answer(ALIAS), None),
        (lambda question: b"\0\0" + answer(A)(question)[2:], None),
        (lambda question: answer(A)(question)[:-2], None),
        (lambda _: b"", None),
    ],
)  # fmt: skip
def test_what_a_name_server_says(
    answers: tuple[int, list[Callable[[bytes], bytes]]],
    given: Callable[[bytes], bytes],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.getrandbits", lambda _bits: 4711)
    port, ready = answers
    ready.append(given)
    assert names.ask(f"debug-0.{SUFFIX}", "127.0.0.1", 60.0, port) == expected


def test_who_does_not_answer_knows_nothing() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        assert names.ask(f"debug-0.{SUFFIX}", "127.0.0.1", 0.01, mute.getsockname()[1]) is None
        port = mute.getsockname()[1]
    assert names.ask(f"debug-0.{SUFFIX}", "127.0.0.1", 60.0, port) is None, "nobody listens there"
