"""The local cloud's network: a bridge in a network namespace of its own, and the addresses on it.

Nothing of it is this host's: a process that does nothing holds the namespace, and it ends with that process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from infra.local.cloud.errors import CloudError
from infra.node.bootstrap import files
from infra.node.model import ClusterDesign
from infra.node.processes import ProcessId

PREFIX = ipaddress.IPv4Network("10.99.0.0/16")
GATEWAY, CONTROLLER = "10.99.0.1", "10.99.0.2"
FIRST_LOGIN, FIRST_NODE = ipaddress.IPv4Address("10.99.0.10"), ipaddress.IPv4Address("10.99.1.0")
START_SECONDS = 10.0
BRIDGE = "br0"


def addresses(design: ClusterDesign, known: Mapping[str, str]) -> dict[str, str]:
    """Host name -> address, for all that the design may ever have.

    Args:
        known: what was given out before: machines that run keep theirs, whatever is added to the design.
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
    """The cloud's DNS, as /etc/hosts has it."""
    return "".join(f"{address} {name}\n" for name, address in given.items())


def read_hosts(file: Path) -> dict[str, str]:
    """Host name -> address, of what `hosts_text` wrote; nothing where there is no file."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except FileNotFoundError:
        return {}
    return {fields[1]: fields[0] for fields in lines if len(fields) == 2}


class Network:
    """The bridge, made where it is missing; an agent that is started anew finds it.

    Args:
        folder: keeps which process holds it.
        environment: of that process; it carries the cluster's mark, so that `down` ends it.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        self._file = folder / "network.json"
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    def holder(self) -> int:
        """The pid of the process that holds the network.

        Raises:
            OSError: there is none, and none can be made.
        """
        with contextlib.suppress(OSError, ValueError, TypeError):
            held = ProcessId(**json.loads(self._file.read_text()))
            if held.alive():
                return held.pid
        return self._make()

    def enter(self) -> list[str]:
        """The command that runs another one in the network."""
        return ["nsenter", f"--target={self.holder()}", "--net", "--"]

    def cut(self, link: str) -> None:
        """Take a cable off, which the kernel still knows."""
        self._ip(f"link set {link} down")

    def join(self, link: str) -> None:
        self._ip(f"link set {link} up")

    def unplug(self, link: str) -> None:
        """Take a cable away; the kernel does so too, but later."""
        with contextlib.suppress(CloudError, OSError):
            self._ip(f"link delete {link}")

    def reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def owns(self, pid: int) -> bool:
        """Whether it is the holder, as a child of ours."""
        return self._child is not None and self._child.pid == pid

    def _ip(self, command: str) -> None:
        done = subprocess.run(
            [*self.enter(), "ip", *command.split()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CloudError("InvalidRequest", f"ip {command}: {done.stderr.strip()}")

    def _make(self) -> int:
        child = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            cwd="/",
            start_new_session=True,
        )
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
        done = subprocess.run(
            ["nsenter", f"--target={child.pid}", "--net", "--", "ip", "-batch", "-"],
            input="\n".join(commands),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            child.kill()
            raise OSError(f"the cloud's network cannot be made: {done.stderr.strip()}")
        files.place(self._file, json.dumps(asdict(process)).encode())
        return child.pid
