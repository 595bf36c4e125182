"""Ports cannot collide, and tasks find each other or name the missing ones."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workload.errors import WorkloadError
from workload.rendezvous import LOOPBACK, Rendezvous, announce, meet, reached_by, reserve_port
from workload.slurm import Step

ENV = {"SLURM_LAUNCH_NODE_IPADDR": "10.0.128.1"}
LOCAL = {"SLURM_LAUNCH_NODE_IPADDR": "127.9.64.1"}
ADDRESSES = {
    **{f"n{number}": f"10.0.128.{number}" for number in range(9)},
    "debug-0": "127.9.65.0",
    "printer": "192.0.2.1",
    "localhost": "127.0.0.1",
}
REAL = socket.getaddrinfo


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve only these names: no other machine is asked."""

    def resolve(host: str, *rest: Any, **options: Any) -> Any:
        if host[:1].isdigit():
            return REAL(host, *rest, **options)
        if host not in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (ADDRESSES[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def steps(key: str, *nodes: str) -> list[Step]:
    return [Step(rank, nodes, node, key) for rank, node in enumerate(nodes)]


def start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_reserved_ports_are_all_different() -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(reserve_port()) for _ in range(400)]
        assert len({s.getsockname()[1] for s in held}) == len(held)


def test_a_reserved_port_is_tensorflows_alone() -> None:
    """TensorFlow's server binds the port as well (SO_REUSEPORT) and gets every connection; others cannot."""
    with reserve_port() as sock, socket.socket() as server, socket.socket() as stranger:
        port = sock.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("0.0.0.0", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("0.0.0.0", port))
        server.listen()
        server.settimeout(60)
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port), timeout=60):
                server.accept()[0].close()


def test_a_reserved_port_is_given_to_no_outgoing_connection() -> None:
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(400)
        held = {stack.enter_context(reserve_port()).getsockname()[1] for _ in range(200)}
        for _ in range(200):
            out = stack.enter_context(socket.create_connection(server.getsockname()))
            assert out.getsockname()[1] not in held


def test_two_jobs_on_one_machine_at_once(tmp_path: Path) -> None:
    """Four tasks of two jobs in a run folder, two on each "node": all ports differ, and jobs stay apart."""
    met: dict[tuple[str, int], list[str]] = {}
    sockets: list[socket.socket] = []

    def task(step: Step) -> None:
        rendezvous = Rendezvous(tmp_path, step)
        held = reserve_port()
        sockets.append(held)
        announce(rendezvous, held, ENV)
        met[step.key, step.rank] = meet(rendezvous, 120)

    everyone = [*steps("7.0.0", "n0", "n0", "n1", "n1"), *steps("8.0.0", "n0", "n0", "n1", "n1")]
    threads = [start(lambda step=step: task(step)) for step in everyone]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    for held in sockets:
        held.close()
    assert len(met) == 8
    for key in ("7.0.0", "8.0.0"):
        assert all(met[key, rank] == met[key, 0] for rank in range(4))
    assert len(set(met["7.0.0", 0]) | set(met["8.0.0", 0])) == 8


def test_a_cyclic_distribution_keeps_each_tasks_own_node(tmp_path: Path) -> None:
    """Slurm lists nodes in block order, so each rank's node is taken from the task's own note."""
    block = ("n0", "n0", "n1", "n1")
    real = ("n0", "n1", "n0", "n1")
    meetings = [Rendezvous(tmp_path, Step(rank, block, node, "k")) for rank, node in enumerate(real)]
    for rendezvous in meetings:
        with reserve_port() as sock:
            announce(rendezvous, sock, ENV)
    assert [address.rpartition(":")[0] for address in meet(meetings[3], 1)] == list(real)


def test_tasks_on_other_nodes_are_refused(tmp_path: Path) -> None:
    for rank, node in enumerate(("n0", "n7")):
        with reserve_port() as sock:
            announce(Rendezvous(tmp_path, Step(rank, ("n0", "n1"), node, "k")), sock, ENV)
    with pytest.raises(WorkloadError, match="n7"):
        meet(Rendezvous(tmp_path, Step(2, ("n0", "n1"), "n0", "k")), 1)


def test_whoever_is_missing_is_named(tmp_path: Path) -> None:
    first, _, _ = steps("k", "n0", "n1", "n2")
    rendezvous = Rendezvous(tmp_path, first)
    with reserve_port() as sock:
        announce(rendezvous, sock, ENV)
        with pytest.raises(WorkloadError, match=r"no address from task 1 \(n1\), 2 \(n2\) within 0 s"):
            meet(rendezvous, 0.3)


def test_a_failed_task_ends_the_wait(tmp_path: Path) -> None:
    first, second = steps("k", "n0", "n1")
    Rendezvous(tmp_path, second).publish("failed", {"message": "task 1 on n1 failed: no GPU"})
    with pytest.raises(WorkloadError, match="task 1 on n1 failed: no GPU"):
        meet(Rendezvous(tmp_path, first), 60)


def test_a_late_task_is_waited_for(tmp_path: Path) -> None:
    first, second = steps("k", "n0", "n1")
    timer = threading.Timer(0.5, lambda: Rendezvous(tmp_path, second).publish("data", {"name": "mnist"}))
    timer.start()
    assert Rendezvous(tmp_path, first).collect("data", range(1, 2), 120, "data") == [{"name": "mnist"}]
    timer.join()


def test_nothing_is_left(tmp_path: Path) -> None:
    only, other = steps("k", "n0")[0], steps("other", "n0")[0]
    one, two = Rendezvous(tmp_path, only), Rendezvous(tmp_path, other)
    one.publish("done", {})
    one.close()
    assert [p.name for p in tmp_path.rglob("*")] == [".rendezvous", "other"]
    two.close()
    assert list(tmp_path.iterdir()) == []


def test_notes_of_an_earlier_run_are_not_read(tmp_path: Path) -> None:
    """Without Slurm every run has the same key."""
    only = steps("0.0.0", "localhost")[0]
    Rendezvous(tmp_path, only).publish("failed", {"message": "yesterday"})
    with pytest.raises(WorkloadError, match="no data"):
        Rendezvous(tmp_path, only).collect("data", range(1), 0.1, "data")


def test_tasks_are_reached_by_their_nodes_names() -> None:
    assert reached_by("n1", "10.0.128.1") == "n1"
    assert reached_by("debug-0", "127.9.64.1") == "debug-0"
    assert reached_by("localhost", "127.0.0.1") == "localhost"
    with pytest.raises(WorkloadError, match=r"n12 does not know its own name \(.*not known\)"):
        reached_by("n12", "10.0.128.1")


def test_where_a_host_gives_its_processes_no_names_they_share_its_loopback(tmp_path: Path) -> None:
    assert reached_by("debug-1", "127.9.64.1") == LOOPBACK
    assert reached_by("printer", "127.0.0.1") == LOOPBACK, "a network's DNS may have an address for any name"
    meetings = [Rendezvous(tmp_path, step) for step in steps("k", "debug-1", "debug-2")]
    for rendezvous in meetings:
        with reserve_port() as sock:
            announce(rendezvous, sock, LOCAL)
    assert {address.rpartition(":")[0] for address in meet(meetings[0], 1)} == {LOOPBACK}
