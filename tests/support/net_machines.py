"""Machines that are a network each, with a name and an /etc of their own. All else of them is this host's.

For what is between machines: names, and programs that find each other by them. Nothing of it is this host's
network, and it ends with the processes that hold it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checkout import until

HOLD = ["sleep", "infinity"]
CLOUD = "10.98.0.1"
"""The address of the network itself, on which a cloud's resolver may be."""
PREFIX = 16
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"


def need_net_machines() -> None:
    """Skip the test where such machines are not possible."""
    if os.geteuid() != 0:
        pytest.skip("networks are root's to make")
    unshare = ["unshare", "--net", "--mount", "--uts", "true"]
    done = subprocess.run(unshare, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no network of one's own here: {done.stderr.strip()}")


class NetMachines:
    """Attributes:
    roots: host -> the folder whose `etc` lies above this host's on that machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots: dict[str, Path] = {}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._hold("")
        self.shell(
            "",
            # An address of its own: else it is that of one of its ports, and changes as machines come.
            "ip link set lo up; ip link add br0 address 02:00:00:00:00:01 type bridge; ip link set br0 up\n"
            f"ip address add {CLOUD}/{PREFIX} dev br0",
        )

    def root(self, host: str) -> Path:
        """Where a machine's files are prepared: `etc` below it."""
        root = self.roots.setdefault(host, self.folder / f"root-{host}")
        (root / "etc").mkdir(parents=True, exist_ok=True)
        return root

    def start(self, host: str, address: str) -> None:
        """Plug a machine in, with the files below its root."""
        etc = self.root(host) / "etc"
        (etc / "nsswitch.conf").write_text(NSSWITCH)
        pid = self._hold(host)
        cable = f"v{len(self._holders)}"
        self.shell(
            "",
            f"ip link add {cable} type veth peer name eth0 netns {pid}\n"
            f"ip link set {cable} master br0; ip link set {cable} up",
        )
        self.shell(
            host,
            f"hostname {host}; ip link set lo up; ip link set eth0 up\n"
            f"ip address add {address}/{PREFIX} dev eth0; ip route add default via {CLOUD}\n"
            f"mount -t overlay overlay -o lowerdir={shlex.quote(str(etc))}:/etc /etc",
        )

    def run(self, host: str, *command: str) -> subprocess.CompletedProcess[str]:
        """What became of a command on a machine; "": on the network itself."""
        return subprocess.run(
            [*self.into(host), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def shell(self, host: str, script: str) -> str:
        done = self.run(host, "sh", "-ec", script)
        assert done.returncode == 0, f"{host}: {script}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def into(self, host: str) -> list[str]:
        """What stands before a command that runs on a machine."""
        return ["nsenter", f"--target={self._holders[host].pid}", "--net", "--mount", "--uts"]

    def daemon(self, host: str, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program that ends with the machines."""
        with log.open("ab") as output:
            started = subprocess.Popen(
                [*self.into(host), *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._daemons.append(started)
        return started

    def close(self) -> None:
        for process in [*reversed(self._daemons), *self._holders.values()]:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _hold(self, host: str) -> int:
        command = ["unshare", "--net", "--mount", "--uts", "--propagation=private", *HOLD]
        held = self._holders[host] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        comm = Path(f"/proc/{held.pid}/comm")
        until(lambda: comm.read_text().strip() == "sleep", 60, f"the network of {host}", 0.01)
        return held.pid
