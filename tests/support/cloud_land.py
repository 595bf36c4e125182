"""A simulated cloud whose machines are containers that boot: the common part of AWS and Google Cloud.

A separate network has the cloud's services, by their names and by TLS (`api`), its metadata service at
169.254.169.254 (`metadata`), which knows a machine by its address, and its resolver. A container is started
for each machine that the fake API calls running. It knows only its hardware, and cloud-init's own datasource
finds its user data. None of this uses the host's network, and `close` ends all of it and proves that.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import socketserver
import stat
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localcloud import boot_files, cgroups, nspawn, volumes
from localcloud.container_machine import Bind
from localcloud.machines import CLUSTER_VARIABLE, pids_of_cluster
from localcloud.network import BRIDGE, GATEWAY, PREFIX
from node.system import subprocesses
from node.system.processes import end_all, having
from tests.support.apart import Mounts, listener
from tests.support.checkout import until
from tests.support.cloud_authority import Authority
from tests.support.cloud_image import SHARES, layers
from tests.support.cloud_server import Answer, Request, Server
from tests.support.containers import Booted, Lab, need_containers
from tests.support.nfs_service import NfsService

SERVICES, METADATA = "10.99.200.1", "169.254.169.254"
CONTROLLER = "10.99.0.10"
ADDRESSES = {"controller": CONTROLLER, "login-0": "10.99.0.11"}
"""The addresses of machines that live as long as the cluster."""
NFS = 2049
CGROUPS = "/srv/cgroup"
"""The folder on a machine with its jobs' cgroups, on a host with cgroups of version 1."""
OURS = "cloud-test-"
"""The beginning of machines' ids. The pid of the process that has them follows."""
OWNER = "cloud-test"
"""The file in a land's folder with the pid of the process that has this simulated cloud."""
BOOT_SECONDS = 420.0
OFF_SECONDS = 20.0
VOLUME_GIB = 1
LOOK_SECONDS = 0.5
"""How often the simulated cloud is asked which machines run. moto takes a while for each answer."""
UNITS = ("cloud-init-local", "cloud-init", "cloud-init-main", "cloud-init-network")
# A container has no firmware, and cloud-init does not read any if it notices that it is in one.
HARDWARE = """\
[Service]
BindReadOnlyPaths=/usr/bin/false:/usr/bin/systemd-detect-virt
BindReadOnlyPaths=/dev/null:/proc/1/environ
InaccessiblePaths=-/sys/class/dmi
"""
TRUST = "[Manager]\nDefaultEnvironment=REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt\n"
"""Packages from PyPI bring their own list of authorities, so they are told to use the machine's."""


@dataclass(frozen=True)
class Instance:
    """A machine as the cloud describes it.

    Attributes:
        host: its name in the cluster: `controller`, `compute-0`.
        hardware: what its firmware says: word of `dmidecode --string` -> text.
    """

    id: str
    host: str
    address: str
    hardware: Mapping[str, str]


class Land:
    """A simulated cloud.

    Args:
        folder: a short path, on a file system that can be below overlayfs.
        shares: path of a share -> its source in a mount (server and name).
        names: the services' names, for the resolver and the certificate.
        datasource: the name of cloud-init's datasource.
    """

    def __init__(
        self, folder: Path, shares: Mapping[str, str], names: Sequence[str], datasource: str
    ) -> None:
        self.path = folder
        self.cards: dict[str, str] = {}
        self._shares, self._names, self._datasource = shares, names, datasource
        self._leases = folder / "hosts"
        self._groups: list[str] = []
        self._names_server: subprocess.Popen[Any] | None = None
        self._instances: dict[str, Instance] = {}
        self._booted: dict[str, Booted] = {}
        self._plugged: dict[str, dict[str, tuple[Path, Path]]] = {}
        """Id of a machine -> its device -> the volume's file, and this host's device of it."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._ends = contextlib.ExitStack()

    def open(self) -> None:
        """Start and end machines as the cloud says from now on. `close` ends all of it, also after errors."""
        _sweep()
        self._layers = layers()
        self.path.mkdir(parents=True)
        (self.path / OWNER).write_text(str(os.getpid()))
        self._authority = Authority(self.path, [*self._names, *(f"*.{name}" for name in self._names)])
        places = {self.path / "shares" / at.lstrip("/"): name for at, name in self._shares.items()}
        self._mounts = self._ends.enter_context(contextlib.closing(Mounts(places)))
        self._ends.callback(self._prove_that_nothing_is_left)
        self._lab = Lab(self.path)
        self._ends.callback(self._end_machines)
        network = Path(f"/proc/{self._lab.network.holder()}/ns/net")
        for address in (SERVICES, METADATA):
            self._lab.address(f"{address}/32")
        self._resolver()
        self._serve(NfsService(listener(network, SERVICES, NFS)))
        metadata, api = listener(network, METADATA, 80), self._tls(listener(network, SERVICES, 443))
        self._serve(Server(metadata, self.metadata, self._errors.append))
        self._serve(Server(api, lambda _address, ask: self.api(ask), self._errors.append))
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="machines", initializer=self._mounts.enter)
        self._ends.callback(self._pool.shutdown)
        datacenter = threading.Thread(target=self._follow, daemon=True, name="datacenter")
        datacenter.start()
        self._ends.callback(datacenter.join)
        self._ends.callback(self._over.set)

    def close(self) -> None:
        """End everything, and check that nothing is left."""
        self._ends.close()
        assert self._errors == []

    # --- what a cloud is -----------------------------------------------------------------------------------

    @abstractmethod
    def running(self) -> list[Instance]:
        """Return the machines that run according to the cloud."""

    def attached(self) -> Mapping[str, Mapping[str, str]]:
        """Return id of a machine -> its device -> the volume that the cloud says to be attached there."""
        return {}

    @abstractmethod
    def metadata(self, address: str, ask: Request) -> Answer:
        """Return the metadata service's answer to the machine at an address."""

    @abstractmethod
    def api(self, ask: Request) -> Answer:
        """Return the answer of one of the services."""

    @abstractmethod
    def stored(self, key: str) -> bytes | None:
        """Return the content of an object in the cluster's bucket."""

    # --- machines ------------------------------------------------------------------------------------------

    def hosts(self) -> dict[str, Instance]:
        """Return the hosts whose machines are powered on."""
        with self._lock:
            return {
                instance.host: instance
                for identity, instance in self._instances.items()
                if identity in self._booted
            }

    def at(self, address: str) -> Instance | None:
        """Return the machine with an address."""
        with self._lock:
            return next(
                (instance for instance in self._instances.values() if instance.address == address), None
            )

    def machine(self, host: str) -> Booted:
        return self._booted[self.hosts()[host].id]

    def shell(self, host: str, script: str, *, user: str | None = None, seconds: float = 120.0) -> str:
        """Run a script on a machine, as root or another user, and return its output."""
        become = ["runuser", "-u", user, "--"] if user else []
        done = self.machine(host).run(*become, "sh", "-c", script, seconds=seconds)
        assert done.status == 0, f"{host}: {script}\n{done.output}\n{done.errors}"
        return done.output.strip()

    def report(self, host: str) -> dict[str, Any]:
        """Return a machine's boot report from the bucket."""
        text = self.stored(f"boot/{host}.json")
        found: dict[str, Any] = json.loads(text) if text else {"state": None, "steps": [], "started": 0.0}
        return found

    def ready(self, host: str, since: float = 0.0) -> dict[str, Any]:
        """Wait until a boot has ended well, and return its report."""

        def over() -> bool:
            assert not self._errors, self._errors
            report = self.report(host)
            return report["started"] > since and report["state"] not in (None, "booting")

        try:
            until(over, BOOT_SECONDS, f"{host}'s boot")
            report = self.report(host)
            assert report["state"] == "ready", json.dumps(report, indent=1)
        except AssertionError as error:
            with contextlib.suppress(Exception):
                error.add_note(self.machine(host).machine.console.read_text(errors="replace")[-4000:])
                look = "journalctl --no-pager -n 150; tail -n 40 /var/log/cloud-init.log /var/log/slurm/*"
                error.add_note(self.machine(host).says("sh", "-c", look))
            raise
        return report

    def reboot(self, host: str) -> None:
        """Reboot a machine as its own root does. It is on again when this returns."""
        booted = self.machine(host)
        before = nspawn.leader(booted.launcher)
        booted.run("systemctl", "reboot")
        until(lambda: nspawn.leader(booted.launcher) not in (None, before), 180, "another boot")

    def volume(self, name: str) -> Path:
        """Return the file of a volume."""
        return self.path / "volumes" / f"{name}.img"

    def _plug(self) -> None:
        """Give machines that are on the volumes that are attached to them."""
        for identity, wanted in self.attached().items():
            with self._lock:
                booted = self._booted.get(identity)
            known = self._plugged.setdefault(identity, {})
            leader = nspawn.leader(booted.launcher) if booted is not None else None
            for device, name in wanted.items() if leader is not None else ():
                node = Path(f"/proc/{leader}/root") / device.lstrip("/")
                if device not in known:
                    image = self.volume(name)
                    known[device] = image, volumes.attach(image, VOLUME_GIB)
                if not node.exists():  # it is gone again after a reboot
                    node.parent.mkdir(parents=True, exist_ok=True)
                    os.mknod(node, stat.S_IFBLK | 0o660, known[device][1].stat().st_rdev)

    def lose_power(self, host: str) -> None:
        """Kill a machine at once, without any shutdown, and without telling the cloud."""
        self.machine(host).kill()

    def _follow(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                wanted = {one.id: one for one in self.running()}
            except Exception as error:
                self._errors.append(error)
                return
            with self._lock:
                new = [one for identity, one in wanted.items() if identity not in self._instances]
                gone = [one for identity, one in self._instances.items() if identity not in wanted]
                self._instances = wanted
            for one in gone:
                self._pool.submit(self._noting, self._power_off, one)
            for one in new:
                self._pool.submit(self._noting, self._power_on, one)
            try:
                self._plug()
            except Exception as error:
                self._errors.append(error)
                return

    def _noting(self, work: Callable[[Instance], None], instance: Instance) -> None:
        try:
            work(instance)
        except BaseException as error:
            self._errors.append(error)

    def _power_on(self, instance: Instance) -> None:
        binds = [Bind(self.path / "shares", SHARES)]
        name = f"{instance.id}-{instance.host}"
        identity = f"{OURS}{os.getpid()}-{name}"
        self._groups.append(nspawn.group(identity))
        binds += [
            Bind(path, f"{CGROUPS}/{controller}")
            for controller, path in cgroups.make_for_jobs(nspawn.group(identity)).items()
        ]

        booted = self._lab.start(
            name, instance.address, self._layers,
            card=self._lab.card(instance.address, f"{METADATA}/32"),
            datasources=[self._datasource], binds=binds, files=self._files(instance), identity=identity,
        )  # fmt: skip
        self.cards[instance.id] = booted.run(
            "cat", f"/sys/class/net/{boot_files.INTERFACE}/address"
        ).output.strip()
        draft = self.path / instance.id
        draft.write_text(f"{self.cards[instance.id]},{instance.address}\n")
        draft.rename(self._leases / instance.id)
        with self._lock:
            self._booted[instance.id] = booted

    def _files(self, instance: Instance) -> dict[str, str | tuple[str, int]]:
        cases = "".join(f"    {word}) echo '{said}' ;;\n" for word, said in instance.hardware.items())
        hardware = f'#!/bin/sh\ncase "$2" in\n{cases}    *) echo "Not Specified" ;;\nesac\n'
        image = self._layers[-1]
        return {
            "usr/sbin/dmidecode": (hardware, 0o755),
            "etc/resolv.conf": f"nameserver {SERVICES}\n",
            "etc/systemd/system.conf.d/trust.conf": TRUST,
            **{f"etc/systemd/system/{unit}.service.d/hardware.conf": HARDWARE for unit in UNITS},
            **self._authority.files(image),
            **self.files(),
        }

    def files(self) -> dict[str, str | tuple[str, int]]:
        """Return further files on the disks of this cloud's machines."""
        return {}

    def _power_off(self, instance: Instance) -> None:
        until(lambda: instance.id in self._booted, 120, f"{instance.host}, which is to be switched off")
        booted = self._booted[instance.id]
        booted.power_off(OFF_SECONDS)
        booted.kill()
        with self._lock:
            del self._booted[instance.id]
            (self._leases / instance.id).unlink(missing_ok=True)
            if not self._over.is_set():
                self._resolver()
        assert nspawn.clear(booted.machine.folder, booted.machine.id) == []
        for image, _ in self._plugged.pop(instance.id, {}).values():
            assert volumes.detach(image) == []

    # --- services ------------------------------------------------------------------------------------------

    def _resolver(self) -> None:
        """Start dnsmasq, which has the services' names and leases for known machines.

        It is restarted whenever a machine has ended: it keeps a lease for two hours, and the next machine
        with that address would wait in vain.
        """
        if self._names_server is not None:
            self._names_server.kill()
            self._names_server.wait()
        (self.path / "leases").unlink(missing_ok=True)
        self._leases.mkdir(exist_ok=True)
        own = [*self._names, *(origin.partition(":")[0] for origin in self._shares.values())]
        options = [
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-hosts",
            "--no-resolv",
            "--user=root",
        ]
        options += ["--local=/#/", f"--interface={BRIDGE}", "--bind-interfaces", "--pid-file="]
        options += [f"--dhcp-hostsdir={self._leases}", f"--dhcp-leasefile={self.path}/leases"]
        options += [
            f"--dhcp-range={PREFIX.network_address},static,{PREFIX.netmask},2h",
            "--dhcp-authoritative",
        ]
        options += [f"--dhcp-option=option:router,{GATEWAY}", f"--dhcp-option=option:dns-server,{SERVICES}"]
        options += [f"--address=/{name}/{SERVICES}" for name in own]
        options += [f"--address=/metadata.google.internal/{METADATA}"]
        self._names_server = self._lab.serve("dnsmasq", *options, log=self.path / "resolver.log")

    def _tls(self, plain: socket.socket) -> socket.socket:
        # The TLS handshake of each connection runs in its own thread.
        return self._authority.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def _serve(self, server: socketserver.BaseServer) -> None:
        self._ends.enter_context(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self._ends.callback(thread.join)
        self._ends.callback(server.shutdown)

    def _end_machines(self) -> None:
        # All machines are told to end at first, because each end takes a while.
        for name in self._groups:
            cgroups.kill(name)
        self._lab.close()

    def _prove_that_nothing_is_left(self) -> None:
        """Check that no machine, present or past, has left a cgroup. `Lab.close` checks everything else."""
        left = cgroups.remove(lambda: [path for name in self._groups for path in cgroups.of(name)])
        assert left == []
        assert volumes.detach(self.path) == []


def _sweep() -> None:
    """End the networks and cgroups of test runs that were killed. Their machines end by themselves."""
    mark = f"{CLUSTER_VARIABLE}=".encode()
    runs: set[Path] = set()

    def marked(_pid: int, environment: list[bytes]) -> bool:
        runs.update(Path(os.fsdecode(one.removeprefix(mark))) for one in environment if one.startswith(mark))
        return False

    having(marked)
    for run in runs:
        with contextlib.suppress(OSError, ValueError):
            if not Path(f"/proc/{int((run / OWNER).read_text())}").exists():
                end_all(functools.partial(pids_of_cluster, run))

    def dead() -> list[Path]:
        found = cgroups.beginning(f"{cgroups.PREFIX}{OURS}")
        pids = {path: path.name.removeprefix(f"{cgroups.PREFIX}{OURS}").partition("-")[0] for path in found}
        return [path for path, pid in pids.items() if pid.isdigit() and not Path(f"/proc/{pid}").exists()]

    cgroups.remove(dead)


def need_clouds() -> None:
    """Skip the test if such a cloud is not possible here."""
    need_containers()
    programs = {"dnsmasq": "dnsmasq-base", "openssl": "openssl", "nsenter": "util-linux"}
    if lacking := [
        package for name, package in programs.items() if shutil.which(name, path=subprocesses.SEARCH) is None
    ]:
        pytest.skip(f"a cloud's network needs {' and '.join(lacking)}")


@contextlib.contextmanager
def opened(land: Land) -> Iterator[Land]:
    """Yield the open simulated cloud, and close it whatever happens."""
    try:
        land.open()
        yield land
    finally:
        land.close()
