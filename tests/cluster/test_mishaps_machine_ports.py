"""Another program takes a port: a node's, or the controller's while that is dead."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.slurm.hostlist import expand
from node.system import rpc
from tests.support.checkout import Checkout, until


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def base(checkout: Checkout) -> int:
    return int(json.loads((checkout.run_directory / "ports.json").read_text())["base"])


def listen(sock: socket.socket, port: int, address: str = "127.0.0.1") -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen()


@pytest.mark.wide
def test_a_nodes_port_is_named_and_the_job_goes_to_another(
    cluster: Checkout, listener: socket.socket
) -> None:
    port = base(cluster) + 1
    listen(listener, port)
    job = cluster.execute("sbatch", "--parsable", "--output=/dev/null", "-N2", "--wrap", "srun true").strip()

    # The job waits only until another node is up. The log keeps the cause.
    log = cluster.run_directory / "log" / "slurmctld.log"
    pattern = rf"setting admin_comment to (bootstrap: .* is taken by .*) for JobId={job}\b"
    cause = until(lambda: re.search(pattern, log.read_text()), 120, "the cause")[1]
    assert f"port {port} of debug-0 is taken by {Path('/proc/self/comm').read_text().strip()}" in cause
    assert f"(pid {os.getpid()})" in cause
    report = json.loads((cluster.run_directory / "bucket" / "boot" / "debug-0.json").read_text())
    assert report["state"] == "failed"
    assert report["steps"][-1]["note"] in cause

    until(lambda: "JobState=COMPLETED" in cluster.ask("scontrol", "show", "job", job), 150, "the job")
    shown = dict(
        pair.split("=", 1)
        for pair in cluster.execute("scontrol", "-o", "show", "job", job).split()
        if "=" in pair
    )
    assert len(expand(shown["NodeList"])) == 2
    assert "debug-0" not in expand(shown["NodeList"])


@pytest.mark.wide
def test_the_controller_moves_if_its_port_was_taken(cluster: Checkout, listener: socket.socket) -> None:
    before = base(cluster)
    agent = str(cluster.run_directory / "cloud" / "agent.sock")
    machines = rpc.call(agent, "list", tags={"role": "controller"})["machines"]
    rpc.call(agent, "terminate", 60.0, ids=[machine["id"] for machine in machines])
    # The port is taken at another address, which blocks a daemon that listens on all addresses.
    listen(listener, before, "127.0.0.2")
    again = cluster.cluster("up", check=True)
    assert "another program has taken a port of the cluster" in again.stderr
    assert base(cluster) != before
    assert f"SlurmctldPort           = {base(cluster)}" in cluster.execute("scontrol", "show", "config")
    until(lambda: cluster.status()["machines"] == {"running": 0, "pending": 0}, 120, "nodes given back")
    until(lambda: "idle " not in cluster.ask("sinfo", "-h"), 120, "what Slurm thought was up")
    assert cluster.execute("srun", "-N1", "hostname")
    assert "nothing to do" in cluster.cluster("up", check=True).stderr
