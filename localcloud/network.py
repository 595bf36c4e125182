"""The local cloud's network: a bridge in its own network namespace, and the machines' addresses.

This host's network does not change. A sleeping process holds the namespace, which ends with that process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from localcloud.machines import CloudError
from node.design.model import ClusterDesign
from node.system import files, foreign, subprocesses
from node.system.processes import ProcessId

PREFIX = ipaddress.IPv4Network("10.99.0.0/16")
GATEWAY, CONTROLLER = "10.99.0.1", "10.99.0.2"
FIRST_LOGIN, FIRST_NODE = ipaddress.IPv4Address("10.99.0.10"), ipaddress.IPv4Address("10.99.1.0")
BRIDGE = "br0"


def addresses(design: ClusterDesign, known: Mapping[str, str]) -> dict[str, str]:
    """Return host name -> address for every machine that the design may have.

    Args:
        known: Addresses that were assigned before; running machines keep theirs when the design grows.
    """
    given = {"controller": CONTROLLER}
    login = [host.name for host in design.hosts if host.role == "login"]
    given |= {name: str(FIRST_LOGIN + number) for number, name in enumerate(login)}
    nodes = [node for partition in design.partitions for node in partition.nodes()]
    given |= {node: known[node] for node in nodes if node in known}
    taken = set(given.values())
    number = 0
    for node in nodes:
        if node in given:
            continue
        while (address := str(FIRST_NODE + number)) in taken:
            number += 1
        given[node] = address
        number += 1
    return given


def hosts_text(given: Mapping[str, str]) -> str:
    """Return the names and addresses in the format of /etc/hosts."""
    return "".join(f"{address} {name}\n" for name, address in given.items())


def read_hosts(file: Path) -> dict[str, str]:
    """Return host name -> address from a file that `hosts_text` wrote; empty if there is no file."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except FileNotFoundError:
        return {}
    return {fields[1]: fields[0] for fields in lines if len(fields) == 2}


class Network:
    """The bridge. It is made when it is needed; a restarted agent finds the existing one.

    Args:
        folder: Holds the file that names the process which holds the network.
        environment: Variables of that process. One of them names the cluster, so that `down` ends it.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        self._file = folder / "network.json"
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    def holder(self) -> int:
        """Return the pid of the process that holds the network; start it if there is none.

        Raises:
            OSError: The network cannot be made.
        """
        with contextlib.suppress(OSError, ValueError, TypeError):
            process = ProcessId(**foreign.record(self._file))
            if process.alive():
                return process.pid
        return self._make()

    def enter(self) -> list[str]:
        """Return the prefix of a command line that runs a command in the network."""
        return ["nsenter", f"--target={self.holder()}", "--net", "--"]

    def cut(self, link: str) -> None:
        """Disconnect a link; it stays in the kernel, for `join`."""
        self._ip(f"link set {link} down")

    def join(self, link: str) -> None:
        self._ip(f"link set {link} up")

    def unplug(self, link: str) -> None:
        """Remove a link now; the kernel would remove it later."""
        with contextlib.suppress(CloudError, OSError):
            self._ip(f"link delete {link}")

    def reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def _ip(self, command: str) -> None:
        ended = subprocesses.run([*self.enter(), "ip", *command.split()], os.environ)
        if ended.status:
            raise CloudError("InvalidRequest", f"ip {command}: {ended.errors.strip()}")

    def _make(self) -> int:
        command = ["unshare", "--net", "--", "sh", "-c", "echo; exec sleep infinity"]
        child = subprocesses.start(command, self._environment, subprocess.PIPE, errors=subprocess.DEVNULL)
        assert child.stdout is not None
        with child.stdout as output:
            ready = output.readline()
        process = ProcessId.of(child.pid)
        if not ready or process is None:
            child.wait()
            raise OSError("no network namespace can be made; doctor says why")
        self._child = child
        commands = [
            f"link add {BRIDGE} type bridge",
            f"address add {GATEWAY}/{PREFIX.prefixlen} dev {BRIDGE}",
            f"link set {BRIDGE} up",
            "link set lo up",
        ]
        batch = ["nsenter", f"--target={child.pid}", "--net", "--", "ip", "-batch", "-"]
        ended = subprocesses.run(batch, os.environ, stdin="\n".join(commands))
        if ended.status:
            child.kill()
            raise OSError(f"the cloud's network cannot be made: {ended.errors.strip()}")
        files.write(self._file, json.dumps(asdict(process)).encode())
        return child.pid
