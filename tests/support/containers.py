"""Machines that boot (`localcloud.nspawn`) for tests, and their network, which leave nothing behind.

A test makes a `Lab`, whose network has a bridge at 10.99.0.1 and nothing else, and starts machines in it.
What answers at another address of it, a metadata service's for one, runs in the network's namespace:
`lab.serve` starts it there, after `lab.address("169.254.169.254/32")`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from infra.config import load_file
from infra.design import design
from infra.errors import UserError
from infra.instance_types.catalog import catalog
from infra.program import locations
from localcloud import cgroups, images, nspawn
from localcloud.container_machine import Machine, NetworkInterface
from localcloud.machines import CLUSTER_VARIABLE, pids_of_cluster
from localcloud.network import BRIDGE, GATEWAY, PREFIX, Network
from node.system import subprocesses
from node.system.processes import ProcessId, end_all
from operations.local import container_images
from tests.support.checkout import until

PROGRAMS = {"systemd-nspawn": "systemd-container", "debootstrap": "debootstrap"}


def why_not() -> str | None:
    """Return why machines cannot boot here, or `None` if they can."""
    if os.geteuid() != 0:
        return "machines that boot are root's to make"
    lacking = [p for name, p in PROGRAMS.items() if shutil.which(name, path=subprocesses.SEARCH) is None]
    if lacking:
        return f"machines that boot need {' and '.join(lacking)}"
    return None if cgroups.hierarchies() else "machines that boot need cgroups of version 2"


def need_containers() -> None:
    """Skip the test if machines cannot boot here."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)


@functools.cache
def base_image(suite: str | None = None) -> Path:
    """Return the image without Slurm, made on first use. The test is skipped if it cannot be made."""
    need_containers()
    try:
        return images.ensure(
            images.recipe(suite), locations.cache_root() / "images", lambda text: print(text, file=sys.stderr)
        )
    except images.ImageError as error:
        pytest.skip(str(error))


def cluster_image(stack_file: str) -> None:
    """Make the image of a stack's machines. The test is skipped if it cannot be made."""
    base_image()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Pulumi.test.yaml"
        file.write_text(textwrap.dedent(stack_file))
        cluster_design = design(load_file(file), catalog())
    try:
        container_images.ensure_image(cluster_design, lambda text: print(text, file=sys.stderr))
    except UserError as error:
        pytest.skip(str(error))


class Booted:
    """A machine that was started."""

    def __init__(self, machine: Machine, child: subprocess.Popen[bytes]) -> None:
        self.machine = machine
        self._child = child
        launcher = ProcessId.of(child.pid)
        assert launcher is not None
        self.launcher = launcher

    def run(self, *command: str, seconds: float = 60.0) -> subprocesses.Ran:
        return nspawn.execute(self.launcher, *command, seconds=seconds)

    def says(self, *command: str) -> str:
        """Run a command on the machine, and return its output, including errors."""
        done = self.run(*command)
        return done.output.strip() or done.errors.strip()

    def until(self, *command: str, seconds: float = 120.0) -> str:
        """Wait until a command succeeds on the machine, and return its output."""

        def ended_well() -> str | None:
            done = self.run(*command)
            return done.output.strip() or "done" if done.status == 0 else None

        found: str = until(ended_well, seconds, f"{' '.join(command)} on {self.machine.host}")
        return found

    def booted(self, seconds: float = 120.0) -> None:
        """Wait until cloud-init has run the user data, and all units are up."""
        self.until("test", "-e", "/var/lib/cloud/instance/boot-finished", seconds=seconds)

    def power_off(self, seconds: float = 30.0) -> bool:
        off = nspawn.power_off(self.machine.id, self.launcher, seconds)
        self._reap()
        return off

    def kill(self) -> None:
        nspawn.kill(self.machine.id, self.launcher)
        self._reap()

    def ended(self, seconds: float = 60.0) -> int:
        """Wait until the machine has switched itself off, and return systemd-nspawn's exit status."""
        return self._child.wait(seconds)

    def _reap(self) -> None:
        if not self.launcher.alive():
            self._child.wait()


class Lab:
    """A network and the machines in it; leaving it ends both.

    Args:
        folder: stands for a run directory: a short path, on a file system that overlayfs can use as a layer.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        (folder / "cloud").mkdir(parents=True)
        self._marks = {CLUSTER_VARIABLE: str(folder)}
        environment = {"PATH": subprocesses.SEARCH, **self._marks}
        self.network = Network(folder / "cloud", environment=environment)
        self._helpers: list[subprocess.Popen[Any]] = []
        self.machines: dict[str, Booted] = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def card(self, address: str, *routes: str) -> NetworkInterface:
        """A network card at an address of 10.99.0.0/16."""
        namespace = Path(f"/proc/{self.network.holder()}/ns/net")
        return NetworkInterface(namespace, BRIDGE, f"{address}/{PREFIX.prefixlen}", GATEWAY, routes)

    def start(self, host: str, address: str, layers: Sequence[Path], **more: Any) -> Booted:
        """Power a machine on.

        Args:
            more: further fields of `Machine`: user_data, datasources, files, binds, …; `identity` for
                its id.
        """
        identity = more.pop("identity", f"test-{os.getpid()}-{len(self.machines)}-{host}")
        card = more.pop("card", None) or self.card(address)
        machine = Machine(
            identity, host, self.path / "machines" / host, layers, card, environment=self._marks, **more
        )
        # The machine ends with the process that started it, however that ends.
        booted = Booted(machine, nspawn.start(machine, die_with_parent=True))
        self.machines[host] = booted
        nspawn.wait_for(booted.launcher, machine.console)
        return booted

    def address(self, address: str) -> None:
        """Add an address to the bridge, for a server that answers there."""
        self.inside("ip", "address", "add", address, "dev", BRIDGE)

    def inside(self, *command: str) -> str:
        """Run a command in the machines' network, on this host's files."""
        done = subprocess.run(
            [*self.network.enter(), *command], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def serve(
        self, *command: str, env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[Any]:
        """Start a program in the machines' network; it ends with the lab."""
        with (log or Path(os.devnull)).open("ab") as output:
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.network.enter(), *command],
                env={**os.environ, **(env or {}), **self._marks},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._helpers.append(child)
        return child

    def close(self) -> None:
        end_all(lambda: pids_of_cluster(self.path))
        for child in self._helpers:
            child.wait()
        for booted in self.machines.values():
            booted.kill()
            assert nspawn.clear(booted.machine.folder, booted.machine.id) == []
        self.network.reap()
        assert self.left() == []

    def left(self) -> list[str]:
        """Return what is left of the lab on this host: processes, mounts, cgroups, interfaces."""
        ids = [booted.machine.id for booted in self.machines.values()]
        found = [f"process {pid}" for pid in pids_of_cluster(self.path)]
        found += [f"cgroup {path}" for identity in ids for path in cgroups.of(nspawn.group(identity))]
        found += [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.path) in line
        ]
        links = {path.name for path in Path("/sys/class/net").iterdir()}
        return found + sorted(links & {nspawn.link_of(identity) for identity in ids})
