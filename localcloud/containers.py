"""Machines as containers that boot: each has a disk, an address, a host name, and systemd as its init."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localcloud import boot_files, cgroups, images, nspawn, volumes
from localcloud.container_machine import Bind, Machine, NetworkInterface
from localcloud.interpreters import interpreter_binds
from localcloud.machines import (
    CLUSTER_VARIABLE,
    CONTROLLER,
    MACHINE_VARIABLE,
    Boot,
    pids_of_cluster,
)
from localcloud.network import BRIDGE, GATEWAY, PREFIX, Network, read_hosts
from localcloud.nspawn import remove_folder
from node.bootstrap.vm.clouds import local
from node.design.model import APPS, SHARED
from node.system import files, foreign, subprocesses
from node.system.accounts import IDS
from node.system.processes import ProcessId, end_all, with_descendants, with_environment

OFF_SECONDS = 20.0
"""Seconds that a machine has for its shutdown."""
CGROUPS = f"{local.HOME}/cgroup"
"""The folder on a machine with the version 1 cgroups for its jobs."""
CLOUD_INIT = """\
# slurm-stacks: root is the only user, and the host name is set already.
cloud_init_modules: [ssh]
cloud_final_modules: [scripts-user]
"""
LAST_STAGE = "etc/systemd/system/cloud-final.service"
DELAYED_START = "[Service]\nExecStartPre=/bin/sleep 10\n"


@dataclass(frozen=True, slots=True)
class BootPlan:
    """What machines of a cluster boot from. `publish` writes it for the agent.

    Attributes:
        layers: The folders of the image's layers, the uppermost first.
        user_data: Role -> user data.
        disk_mib: Host name -> size of the disk in MiB, for a test that fills one. Other machines have as
            much space as the run directory.
        state_gib: Size of the disk that outlives the controller; `None` means that it has none.
        backups: The folder to which the controller writes backups; `None` means none.
    """

    layers: tuple[str, ...]
    user_data: dict[str, str]
    disk_mib: dict[str, int]
    state_gib: int | None = None
    backups: str | None = None

    def write(self, run: Path) -> None:
        files.write(run / "cloud" / "plan.json", json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, run: Path) -> BootPlan:
        """Read what `publish` has written.

        Raises:
            OSError: It is missing or damaged.
        """
        try:
            content = foreign.record(run / "cloud" / "plan.json")
            return cls(
                tuple(content["layers"]),
                dict(content["user_data"]),
                dict(content["disk_mib"]),
                content["state_gib"],
                content["backups"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{run}/cloud/plan.json is damaged: run `up` again") from error


class ContainerRuntime:
    """The runtime of a machine as a container, which ends when it is powered off, by itself or by the agent.

    Args:
        run: The cluster's run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._network = Network(
            run / "cloud", environment={"PATH": subprocesses.SEARCH, CLUSTER_VARIABLE: str(run)}
        )
        self._children: list[subprocess.Popen[bytes]] = []
        # A child that `start` adds while `reap` replaces the list would be lost.
        self._lock = threading.Lock()

    def start(self, boot: Boot) -> ProcessId:
        try:
            machine = self._machine(boot)
            with self._lock:
                child = nspawn.start(machine)
                self._children.append(child)
            process = ProcessId.of(child.pid)
            if process is None:
                raise OSError(f"machine {boot.id} ended at once; see {machine.console}")
            nspawn.wait_for(process, machine.console)
        except OSError:
            self.clear(boot)
            raise
        return process

    def _machine(self, boot: Boot) -> Machine:
        given = read_hosts(self._run / "cloud" / "hosts")
        if boot.host not in given:
            raise OSError(f"{boot.host} has no address in {self._run}/cloud/hosts")
        plan = BootPlan.read(self._run)
        namespace = Path(f"/proc/{self._network.holder()}/ns/net")
        address = f"{given[boot.host]}/{PREFIX.prefixlen}"
        console = console_file(self._run, boot.host)
        console.parent.mkdir(parents=True, exist_ok=True)
        layers = [Path(layer) for layer in plan.layers]
        # /etc/hosts serves as the cloud's DNS.
        names = "".join(f"{address} {name}\n" for name, address in given.items())
        return Machine(
            id=self._identity(boot),
            host=boot.host,
            folder=self._folder(boot),
            layers=layers,
            card=NetworkInterface(namespace, BRIDGE, address, GATEWAY),
            # Without user data a machine runs, but its bootstrap never starts: it never becomes a node.
            user_data=plan.user_data[boot.role] if boot.registers else None,
            files={
                "etc/hosts": images.HOSTS + names,
                "etc/cloud/cloud.cfg.d/99-local.cfg": CLOUD_INIT,
                **without_last_stage(layers),
            },
            binds=self._binds(boot, plan),
            environment={MACHINE_VARIABLE: boot.id, CLUSTER_VARIABLE: str(self._run)},
            disk_mib=plan.disk_mib.get(boot.host),
            # A new controller gets the root disk of the old one, like a machine that was switched off and on,
            # unless it has another image.
            disk=disk_folder(self._run, boot.host) / "root" if boot.role == CONTROLLER else None,
            log=console,
            cores=boot.cores,
        )

    def _binds(self, boot: Boot, plan: BootPlan) -> list[Bind]:
        run = self._run
        reports = run / "bucket" / "boot"
        reports.mkdir(exist_ok=True)
        binds = [
            Bind(run / "bucket", local.BUCKET, read_only=True),
            Bind(reports, f"{local.BUCKET}/boot"),
            Bind((run / "apps").resolve(), APPS),
            Bind(run / "shared", SHARED),
            *interpreter_binds(run / "apps" / "envs"),
        ]
        jobs = cgroups.make_for_jobs(nspawn.group(self._identity(boot)), boot.cores)
        for controller, path in jobs.items():
            binds.append(Bind(path, f"{CGROUPS}/{controller}"))
        kept = {"log": "/var/log/slurm"}
        if boot.role == CONTROLLER:
            # A disk of its own for the state begins with the files of this folder.
            kept |= {"state": "/var/spool/slurmctld", "lib": "/var/lib/slurm-stacks"}
            if plan.state_gib is not None:
                device = volumes.attach(state_image(run), plan.state_gib)
                binds.append(Bind(device, local.STATE_DEVICE))
            if plan.backups is not None:
                binds.append(Bind(Path(plan.backups), local.BACKUPS))
            binds.append(Bind(_make_folder(run / "secrets", 0o700), local.SECRETS))
            api = _make_folder(socket_path(run).parent, 0o700)
            os.chown(api, IDS["slurm"], 0)
            binds.append(Bind(api, str(Path(local.SOCKET).parent)))
        return binds + [
            Bind(_make_folder(disk_folder(run, boot.host) / name, 0o755), place)
            for name, place in kept.items()
        ]

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        nspawn.power_off(self._identity(boot), process, OFF_SECONDS)
        self.kill(boot, process)
        return not process.alive()

    def move(self, boot: Boot, process: ProcessId, cores: Sequence[int]) -> None:
        nspawn.move(self._identity(boot), process, boot.cores, cores)

    def kill(self, boot: Boot, process: ProcessId) -> None:
        nspawn.kill(self._identity(boot), process)
        self.clear(boot)

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
        cgroups.kill(nspawn.group(identity))
        end_all(lambda: with_descendants(with_environment(MACHINE_VARIABLE, boot.id)))
        self.reap()
        self._network.unplug(nspawn.link_of(identity))
        # A machine that was cleared before has no disk, and its successor may have it.
        if boot.role == CONTROLLER and self._folder(boot).exists():
            volumes.detach(state_image(self._run))
        nspawn.clear(self._folder(boot), identity)

    def purge(self) -> None:
        end_machines(self._run)
        end_all(lambda: pids_of_cluster(self._run))
        remove_leftovers(self._run)
        self.reap()

    def reap(self) -> None:
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
        self._network.reap()

    def _identity(self, boot: Boot) -> str:
        return f"{_cluster(self._run)}-{boot.id}"

    def _folder(self, boot: Boot) -> Path:
        return self._run / "cloud" / "machines" / boot.id


def without_last_stage(layers: Sequence[Path]) -> dict[str, str]:
    """Return the file that keeps cloud-init's last stage from a boot: path on the machine -> text.

    Where cloud-init has started our boot, its last stage has nothing to do, and its start takes a third of a
    second of CPU time. A newer cloud-init is one process that waits for each stage, so there it comes later.
    """
    if boot_files.is_one_process(layers):
        return {f"{LAST_STAGE}.d/slurm-stacks.conf": DELAYED_START}
    return {LAST_STAGE: ""}


def disk_folder(run: Path, host: str) -> Path:
    """Return the folder that outlives the machine of this name, like a controller's data disk."""
    return run / "disk" / host


def state_image(run: Path) -> Path:
    """Return the file of the disk that outlives the controller, which has Slurm's state."""
    return run / "disk" / "state.img"


def console_file(run: Path, host: str) -> Path:
    """Return the file with the console output of the machine of this name."""
    return disk_folder(run, host) / "log" / f"boot-{host}.log"


def socket_path(run: Path) -> Path:
    """Return the agent's socket. Its folder is visible on the controller, but not to its users."""
    return run / "cloud" / "api" / "agent.sock"


def _make_folder(folder: Path, mode: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    return folder


def _cluster(run: Path) -> str:
    return hashlib.sha256(os.fsencode(run)).hexdigest()[:12]


def _prefix(run: Path) -> str:
    """Return the prefix of the names of the cluster's cgroups."""
    return nspawn.group(f"{_cluster(run)}-")


def leftovers(run: Path) -> list[str]:
    """Return the cgroups, mounts and devices that are left of a cluster's machines, one line each."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    remains = [f"cgroup {path}" for path in cgroups.beginning(_prefix(run))]
    remains += [f"device {path}" for path in volumes.attached(run)]
    return remains + [f"mount {line.split()[4]}" for line in mounts if f" {run}/" in line]


def end_machines(run: Path) -> None:
    """Kill all processes of a cluster's machines, also of machines without a record."""
    for name in {path.name for path in cgroups.beginning(_prefix(run))}:
        cgroups.kill(name)


def remove_leftovers(run: Path) -> list[str]:
    """Remove cgroups, devices and files of a cluster's machines, whose processes have ended.

    Returns:
        One line for each cgroup and device that could not be removed.
    """
    left = [f"cgroup {path}" for path in cgroups.remove(lambda: cgroups.beginning(_prefix(run)))]
    left += [f"device {path}" for path in volumes.detach(run)]
    folder = run / "cloud" / "machines"
    if folder.exists():
        remove_folder(folder)
    return left
