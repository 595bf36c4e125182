"""Machines as containers that boot: each with a disk, an address, a host name, and systemd above all else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.local.cloud import groups, nspawn
from infra.local.cloud.machines import CLUSTER_VARIABLE, CONTROLLER, MACHINE_VARIABLE, Boot, of_cluster
from infra.local.cloud.network import BRIDGE, GATEWAY, PREFIX, Network, read_hosts
from infra.local.cloud.nspawn import Bind, remove_folder
from infra.node.bootstrap import files
from infra.node.bootstrap.accounts import IDS
from infra.node.bootstrap.vm import cloud_local
from infra.node.processes import ProcessId, end_all, with_descendants, with_environment

OFF_SECONDS = 20.0
"""How long a machine has for its shutdown."""
CGROUPS = f"{cloud_local.HOME}/cgroup"
"""Where a machine has cgroups of version 1 for its jobs."""
CLOUD_INIT = """\
# slurm-stacks: there are no users but root, and the machine has its name.
cloud_init_modules: [ssh]
cloud_final_modules: [scripts-user]
"""
IN_NO_HURRY = "[Service]\nExecStartPre=/bin/sleep 10\n"
"""Of cloud-init's last stage, which has nothing left to do, and whose start costs a booting node half a
second of a processor."""
LOCALHOST = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
APPS, SHARED = "/apps", "/home"
"""Where machines see the run directory's `apps` and `shared`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What machines of a cluster start from, as `publish` has left it for the agent.

    Attributes:
        layers: of their image, the uppermost first.
        user_data: role -> text.
        disk_mib: the size of a machine's disk, for a test that fills one; None: the run directory's.
    """

    layers: tuple[str, ...]
    user_data: dict[str, str]
    disk_mib: dict[str, int]

    def write(self, run: Path) -> None:
        files.place(run / "cloud" / "plan.json", json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, run: Path) -> Plan:
        """Raises:
        OSError: nothing usable has been published.
        """
        try:
            content = json.loads((run / "cloud" / "plan.json").read_text())
            return cls(tuple(content["layers"]), dict(content["user_data"]), dict(content["disk_mib"]))
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{run}/cloud/plan.json is damaged: run `up` again") from error


class ContainerMaker:
    """A machine is a container, and ends when it is switched off, by itself or by us.

    Args:
        run: the cluster's run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._network = Network(
            run / "cloud", environment={"PATH": nspawn.SEARCH, CLUSTER_VARIABLE: str(run)}
        )
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        # Between a child's start and its place in `_children` nobody else looks.
        self._lock = threading.Lock()

    def start(self, boot: Boot) -> ProcessId:
        machine = self._machine(boot)
        try:
            with self._lock:
                child = nspawn.start(machine)
                self._children[child.pid] = child
            process = ProcessId.of(child.pid)
            if process is None:
                raise OSError(f"machine {boot.id} ended at once; see {machine.console}")
            nspawn.wait_for(process, machine.console)
        except OSError:
            self.clear(boot)
            raise
        return process

    def _machine(self, boot: Boot) -> nspawn.Machine:
        given = read_hosts(self._run / "cloud" / "hosts")
        if boot.host not in given:
            raise OSError(f"{boot.host} has no address in {self._run}/cloud/hosts")
        plan = Plan.read(self._run)
        namespace = Path(f"/proc/{self._network.holder()}/ns/net")
        address = f"{given[boot.host]}/{PREFIX.prefixlen}"
        console = self.console(self._run, boot.host)
        console.parent.mkdir(parents=True, exist_ok=True)
        # The cloud's DNS.
        names = "".join(f"{address} {name}\n" for name, address in given.items())
        return nspawn.Machine(
            id=self._identity(boot),
            host=boot.host,
            folder=self._folder(boot),
            layers=[Path(layer) for layer in plan.layers],
            card=nspawn.Card(namespace, BRIDGE, address, GATEWAY),
            # One that never registers runs, and its bootstrap never starts.
            user_data=plan.user_data[boot.role] if boot.registers else None,
            files={
                "etc/hosts": LOCALHOST + names,
                "etc/cloud/cloud.cfg.d/99-local.cfg": CLOUD_INIT,
                "etc/systemd/system/cloud-final.service.d/slurm-stacks.conf": IN_NO_HURRY,
            },
            binds=self._binds(boot),
            marks={MACHINE_VARIABLE: boot.id, CLUSTER_VARIABLE: str(self._run)},
            disk_mib=plan.disk_mib.get(boot.host),
            # It comes back with what it was, as a machine does that was switched off and on.
            disk=disk(self._run, boot.host) / "root" if boot.role == CONTROLLER else None,
            log=console,
        )

    def _binds(self, boot: Boot) -> list[Bind]:
        run = self._run
        reports = run / "bucket" / "boot"
        reports.mkdir(exist_ok=True)
        found = [
            Bind(run / "bucket", cloud_local.BUCKET, read_only=True),
            Bind(reports, f"{cloud_local.BUCKET}/boot"),
            Bind((run / "apps").resolve(), APPS),
            Bind(run / "shared", SHARED),
            *python(),
        ]
        for controller, path in groups.make_for_jobs(nspawn.group(self._identity(boot))).items():
            found.append(Bind(path, f"{CGROUPS}/{controller}"))
        kept = {"log": "/var/log/slurm"}
        if boot.role == CONTROLLER:
            kept |= {"state": "/var/spool/slurmctld", "lib": "/var/lib/slurm-stacks"}
            found.append(Bind(_own(run / "secrets", 0o700), cloud_local.SECRETS))
            api = _own(socket(run).parent, 0o700)
            os.chown(api, IDS["slurm"], 0)
            found.append(Bind(api, str(Path(cloud_local.SOCKET).parent)))
        return found + [Bind(_own(disk(run, boot.host) / name, 0o755), place) for name, place in kept.items()]

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        nspawn.power_off(self._identity(boot), process, OFF_SECONDS)
        return self._end(boot, process)

    def kill(self, boot: Boot, process: ProcessId) -> None:
        self._end(boot, process)

    def _end(self, boot: Boot, process: ProcessId) -> bool:
        nspawn.kill(self._identity(boot), process)
        self.clear(boot)
        return not process.alive()

    def freeze(self, boot: Boot, process: ProcessId) -> None:
        nspawn.freeze(self._identity(boot))

    def thaw(self, boot: Boot, process: ProcessId) -> None:
        nspawn.thaw(self._identity(boot))

    def cut(self, boot: Boot, process: ProcessId) -> None:
        self._network.cut(nspawn.link_of(self._identity(boot)))

    def join(self, boot: Boot, process: ProcessId) -> None:
        self._network.join(nspawn.link_of(self._identity(boot)))

    def clear(self, boot: Boot) -> None:
        identity = self._identity(boot)
        groups.kill(nspawn.group(identity))
        end_all(lambda: with_descendants(with_environment(MACHINE_VARIABLE, boot.id)))
        self.reap()
        self._network.unplug(nspawn.link_of(identity))
        nspawn.clear(self._folder(boot), identity)

    def purge(self) -> None:
        end_machines(self._run)
        end_all(lambda: of_cluster(self._run))
        remove_traces(self._run)
        self.reap()

    def reap(self) -> None:
        with self._lock:
            for pid, child in list(self._children.items()):
                if child.poll() is not None:
                    del self._children[pid]
        self._network.reap()

    def _identity(self, boot: Boot) -> str:
        return f"{_cluster(self._run)}-{boot.id}"

    def _folder(self, boot: Boot) -> Path:
        return self._run / "cloud" / "machines" / boot.id

    @staticmethod
    def console(run: Path, host: str) -> Path:
        """Where what a machine of this name has written to its console lies, among its own logs."""
        return disk(run, host) / "log" / f"boot-{host}.log"


def disk(run: Path, host: str) -> Path:
    """What outlives a machine of this name, as the data disk of a controller does."""
    return run / "disk" / host


def socket(run: Path) -> Path:
    """The agent's: in a folder of its own, which the controller sees, and its users do not."""
    return run / "cloud" / "api" / "agent.sock"


def _own(folder: Path, mode: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    return folder


def python() -> list[Bind]:
    """This Python, which training environments are made with, where it is no part of the distribution."""
    prefix = Path(sys.base_prefix).resolve()
    if prefix == Path("/usr"):
        return []
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # An environment's link may lead to any of the names.
    programs = [prefix / "bin" / name for name in ("python", "python3", f"python{version}")]
    parts = [
        *programs,
        Path(sysconfig.get_path("stdlib")),
        *(prefix / "lib").glob(f"libpython{version}*.so*"),
    ]
    return [Bind(path.resolve(), str(path), read_only=True) for path in parts if path.exists()]


def _cluster(run: Path) -> str:
    return hashlib.sha256(os.fsencode(run)).hexdigest()[:12]


def _prefix(run: Path) -> str:
    """The beginning of the names of all the cluster's cgroups."""
    return nspawn.group(f"{_cluster(run)}-")


def traces(run: Path) -> list[str]:
    """What the kernel still has of a cluster's machines, a line each, beside processes."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [f"cgroup {path}" for path in groups.beginning(_prefix(run))]
    return found + [f"mount {line.split()[4]}" for line in mounts if f" {run}/" in line]


def end_machines(run: Path) -> None:
    """End all that machines of a cluster run, at once, whoever knows of it."""
    for name in {path.name for path in groups.beginning(_prefix(run))}:
        groups.kill(name)


def remove_traces(run: Path) -> list[str]:
    """Remove what a cluster's machines had, once their processes have ended. Returns what stays."""
    left = [f"cgroup {path}" for path in groups.remove(lambda: groups.beginning(_prefix(run)))]
    folder = run / "cloud" / "machines"
    if folder.exists():
        remove_folder(folder)
    return left
