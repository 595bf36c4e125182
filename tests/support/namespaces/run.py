"""A run directory whose namespace machines boot into a program that answers on a port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.local import possible
from infra.local.cloud.machines import Boot, of_cluster
from infra.local.cloud.network import hosts_text
from infra.node.processes import ProcessId
from tests.support.checkout import until
from tests.support.namespaces.maker import NamespaceMaker, enter

PORT = 7000
LOADER = f"""
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
open("/etc/mark-of-the-machine", "w").write(sys.argv[-1])
if os.fork() == 0:
    os.setsid()  # what a job leaves behind
    time.sleep(300)
server = socket.create_server(("", {PORT}))
while True:
    connection, _ = server.accept()
    connection.sendall(socket.gethostname().encode())
    connection.close()
"""
ASK = f"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], {PORT}), 1) as connection:
        print(connection.recv(100).decode())
except OSError:
    print("no answer")
"""
SILENCE = "no answer"
ADDRESSES = {"controller": "10.99.0.2", "debug-0": "10.99.1.0", "debug-1": "10.99.1.1"}


def need_namespaces() -> None:
    """Skip the test where such machines are not possible."""
    if problem := possible.probe():
        pytest.skip(f"this root may not make namespaces: {problem}")


class NamespaceRun:
    """Attributes:
    maker: makes its machines, as whoever runs this.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        for name in ("cloud", "bucket"):
            (folder / name).mkdir(parents=True)
        (folder / "python3").symlink_to(os.path.realpath(sys.executable))
        (folder / "cloud" / "hosts").write_text(hosts_text(ADDRESSES))
        (folder / "bucket" / "loader.py").write_text(LOADER)
        self.rootless = os.geteuid() != 0
        self.maker = self.another_maker()
        self.running: dict[str, tuple[Boot, ProcessId]] = {}

    def another_maker(self) -> NamespaceMaker:
        """What an agent has that is started anew."""
        return NamespaceMaker(self.path, rootless=self.rootless)

    def start(self, host: str) -> tuple[Boot, ProcessId]:
        """Start a machine; it answers when this returns."""
        boot = Boot(f"m-{len(self.running)}-{os.getpid()}", "compute", host)
        machine = boot, self.maker.start(boot)
        self.running[host] = machine
        until(lambda: self.ask(host, ADDRESSES[host]) == host, 60, f"{host}'s answer")
        return machine

    def inside(self, host: str, *command: str) -> str:
        """What a command prints on a machine."""
        _, process = self.running[host]
        prefix = enter(
            process.pid, rootless=self.rootless, environment=["PATH=/usr/sbin:/usr/bin"], folder="/"
        )
        done = subprocess.run(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.strip() or done.stderr.strip()

    def ask(self, host: str, address: str) -> str:
        """What answers at an address, when it is asked from a machine."""
        return self.inside(host, str(self.path / "python3"), "-c", ASK, address)

    def answers(self, host: str, address: str) -> str:
        """What answers at an address in the end: on a busy machine nobody may in time."""
        answer: str = until(
            lambda: (said := self.ask(host, address)) != SILENCE and said, 60, f"an answer of {address}"
        )
        return answer

    def close(self) -> None:
        self.maker.purge()


def seen_on_host(run: Path) -> list[str]:
    """What this host has got of a cluster's machines, and must not: mounts, and links of the bridge's.

    Mounts and links of others come and go meanwhile.
    """
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(run) in line]
    names = [path.name for path in Path("/sys/class/net").iterdir()]
    return mounts + [name for name in names if re.fullmatch(r"br0|eth0@.*|v[0-9a-f]{12}", name)]


def of_run(run: Path) -> Mapping[str, set[str]]:
    """What there is of one cluster's: its processes, and folders of its machines."""
    machines = run / "cloud" / "machines"
    return {
        "processes": {str(pid) for pid in of_cluster(run)},
        "folders": {path.name for path in machines.iterdir()} if machines.exists() else set(),
    }
