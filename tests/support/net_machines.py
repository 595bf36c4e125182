"""Machines that each have a network, a name and an /etc of their own. Everything else is this host's.

They are for tests between machines: names, and programs that find each other by names. They do not use this
host's network, and they end with the processes that hold them.
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
"""The address of the network itself, where a cloud's resolver may listen."""
PREFIX = 16
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"


def need_net_machines() -> None:
    """Skip the test if such machines are not possible here."""
    if os.geteuid() != 0:
        pytest.skip("networks are root's to make")
    unshare = ["unshare", "--net", "--mount", "--uts", "true"]
    done = subprocess.run(unshare, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no network of one's own here: {done.stderr.strip()}")


class NetMachines:
    """A network with machines.

    Attributes:
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
            # The bridge's hardware address is fixed. Otherwise it is that of one of the ports, which change.
            "ip link set lo up; ip link add br0 address 02:00:00:00:00:01 type bridge; ip link set br0 up\n"
            f"ip address add {CLOUD}/{PREFIX} dev br0",
        )

    def root(self, host: str) -> Path:
        """Return the folder for a machine's files; `etc` is below it."""
        root = self.roots.setdefault(host, self.folder / f"root-{host}")
        (root / "etc").mkdir(parents=True, exist_ok=True)
        return root

    def start(self, host: str, address: str) -> None:
        """Add a machine to the network, with the files below its root."""
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
        """Run a command on a machine, or with "" on the network itself."""
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
        """Return the words before a command that runs on a machine."""
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
