"""The local cluster's run directory: its paths, and the saved ports and addresses."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from infra.program.stack import Stack
from localcloud import addresses, cgroups, containers, hosts_namespace, isolation, network
from localcloud.containers import CGROUPS
from localcloud.machines import LOCALHOST, base_python, hosts_namespace_possible, pids_of_cluster
from node.bootstrap.report import displayable
from node.bootstrap.vm.clouds import local
from node.design.model import APPS, CONTAINER, SHARED, SLURMDBD_PORT, ClusterDesign, Settings, Site
from node.design.sites import LocalSite
from node.slurm import port_blocks, users
from node.slurm.addressing import slurmd_addresses
from node.system import files, foreign, plurals, ports, rpc
from node.system.locks import locked_folder
from node.system.waiting import wait_at_most
from operations.local.loopback import _localhost_is_here, has_ipv6

# The ports are below the kernel's range for outgoing connections, which begins at 32768 by default.
FIRST_PORT, LAST_PORT = 16800, 32600
PORTS = "ports.json"
"""The file in a run directory with its cluster's ports."""
LOOK_SECONDS = 2.0
"""For how long a port must seem to be another program's."""
LOOK_EVERY_SECONDS = 0.2
NOTE_LENGTH = 1 << 20
"""The most characters that are read of a note of ports. One for all ports is far shorter."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one cluster on this machine."""

    path: Path

    @classmethod
    def of(cls, stack: Stack) -> RunDirectory:
        return cls(folders.check_run_dir(stack))

    @classmethod
    def make(cls, stack: Stack) -> RunDirectory:
        """Create the directory, with links to folders that outlive the cluster."""
        run = cls(folders.make_run_dir(stack))
        for folder in (run.cloud, run.bucket, run.path / "etc", run.path / "log", run.shared):
            folder.mkdir(exist_ok=True)
        files.link(run.path / "python3", base_python())
        apps = locations.cache_root() / "apps"
        (apps / "envs").mkdir(parents=True, exist_ok=True)
        files.link(run.apps, str(apps))
        return run

    @property
    def cloud(self) -> Path:
        return self.path / "cloud"

    @property
    def agent_socket(self) -> Path:
        return isolation.agent_socket(self.path)

    @property
    def cluster_file(self) -> Path:
        """The file with the name of the cluster that is up here."""
        return self.cloud / "cluster"

    @property
    def cluster(self) -> str | None:
        """The name of the cluster that is up here; `None` if there is none, or if it was not saved."""
        with contextlib.suppress(OSError):
            return self.cluster_file.read_text() or None
        return None

    @property
    def bucket(self) -> Path:
        return self.path / "bucket"

    @property
    def outputs(self) -> Path:
        """The file with the cluster's output, for `./cluster --outputs`."""
        return self.path / "outputs.json"

    @property
    def apps(self) -> Path:
        return self.path / "apps"

    @property
    def shared(self) -> Path:
        return self.path / "shared"

    @property
    def tool(self) -> Path:
        """The cluster's own command (`node.command_line`) if machines are processes."""
        return self.path / "code" / "current" / "bin" / "slurm-stacks"

    def boot_log(self, host: str) -> Path:
        """Return the file with the output of a machine's first process, or of a container's console."""
        if self.containers:
            return containers.console_file(self.path, host)
        return self.path / "log" / f"boot-{host}.log"

    def boot_report(self, host: str) -> Path:
        """Return the file that `report` reads."""
        return self.bucket / "boot" / f"{host}.json"

    def report(self, host: str) -> dict[str, Any]:
        """Return the steps and the facts of a machine's boot; empty if it has not reported yet."""
        try:
            return displayable(self.boot_report(host).read_bytes()) or {}
        except OSError:
            return {}

    def current(self) -> dict[str, Any]:
        """Return the content of `current.json`, which names what is published now.

        Raises:
            OSError, ValueError: it cannot be read.
        """
        published: dict[str, Any] = foreign.record(self.bucket / "current.json")
        return published

    def call(self, method: str, seconds: float = 10.0, /, **params: Any) -> Any:
        """Call the local cloud's agent (`localcloud.agent`).

        Args:
            seconds: Seconds of silence after which the agent counts as unavailable.

        Raises:
            RpcUnavailableError: No agent answers.
            RpcError: The agent refused.
        """
        return rpc.call(str(self.agent_socket), method, seconds, **params)

    def pids(self) -> list[int]:
        """Return the pids of all of the cluster's processes: agent, machines, daemons, jobs."""
        return pids_of_cluster(self.path)

    def disk(self, host: str) -> Path:
        """Return the folder that outlives a container machine of this name: logs, a controller's queue."""
        return containers.disk_folder(self.path, host)

    @property
    def containers(self) -> bool:
        """Whether the machines are containers, which boot like real machines."""
        return isolation.read_isolation(self.path) == CONTAINER

    @property
    def hosts(self) -> Path:
        """The file with the names and addresses of the machines."""
        return self.cloud / "hosts"

    def settings(self, design: ClusterDesign, nodes_are_up: Callable[[], bool] = lambda: False) -> Settings:
        """Return the cluster's settings: the design with this machine's facts.

        Each process machine has a port and an address. The first call chooses and saves them; ports that
        another program has taken are replaced. Each container machine has an address, which never changes.

        Args:
            nodes_are_up: Is asked if new nodes can only get ports by other ones for all. Nodes that are up
                would be cut off by that.

        Raises:
            UserError: There are not enough free ports, or nodes that are up would be cut off, or this user
                has no name.
        """
        if design.isolation == CONTAINER:
            return Settings(design, self._container_site(design))
        placed = port_blocks.lay_out_blocks(design.partitions, self._kept_blocks())
        with locked_folder(self.path.parent):  # no other command of this user chooses ports now
            base, first = (
                self._ports(1 + port_blocks.ports_of_blocks(placed), nodes_are_up),
                addresses.ensure_block(self.path),
            )
            slurmdbd_port = self._slurmdbd_port() if design.slurm.accounting else SLURMDBD_PORT
        self._keep(blocks=placed)
        has_addresses = addresses.usable(first)
        settings = Settings(
            design,
            Site(
                root=str(self.path),
                user=user(),
                controller_host=LOCALHOST,
                controller_address="127.0.0.1",
                slurmctld_port=base,
                slurmd_port=base + 1,
                first_address=addresses.first_node_address(first) if has_addresses else None,
                blocks=placed,
                slurmdbd_port=slurmdbd_port,
                python=str(self.path / "python3"),
                apps=str(self.apps),
                shared=str(self.shared),
                cloud=LocalSite(
                    str(self.agent_socket),
                    has_addresses and hosts_namespace_possible(self.path) and _localhost_is_here(),
                    ipv6=has_ipv6(),
                ),
            ),
        )
        head = {machine.name: addresses.head_address(first, i) for i, machine in enumerate(design.hosts)}
        self._write_hosts(head | slurmd_addresses(settings) if has_addresses else {})
        # Update the file that running machines have mounted as /etc/hosts.
        with contextlib.suppress(OSError):
            hosts_namespace.write_hosts(self.cloud)
        return settings

    def _write_hosts(self, given: Mapping[str, str]) -> None:
        self.cloud.mkdir(exist_ok=True)
        files.write(self.hosts, network.hosts_text(given).encode())

    def _container_site(self, design: ClusterDesign) -> Site:
        self._write_hosts(network.addresses(design, network.read_hosts(self.hosts)))
        return Site(
            root="/",
            user="slurm",
            controller_host="controller",
            controller_address=network.CONTROLLER,
            apps=APPS,
            shared=SHARED,
            secret="munge.key",
            # Every machine's /etc/hosts has the names of all.
            cloud_dns=True,
            cgroups=CGROUPS if cgroups.old_controllers() else None,
            cloud=LocalSite(local.SOCKET),
        )

    def _ports(self, count: int, nodes_are_up: Callable[[], bool]) -> int:
        if (kept := self.kept_ports()) is not None and self._usable(*kept):
            base, have = kept
            # Running nodes keep their ports if the ports that follow are free for the new ones.
            more = range(base + have, base + count)
            if base + count <= LAST_PORT and all(map(ports.free, more)):
                self._keep(count=max(have, count))
                return base
            if nodes_are_up():
                raise UserError(
                    f"the new nodes need {plurals.count(len(more), 'port')} from {more.start} on, which "
                    "others have. With other ports for all, the nodes that are up would be cut off and "
                    "their jobs lost, so nothing was changed. End what listens there (ss -ltnp "
                    f"'sport >= {more.start} and sport < {more.stop}'), or run the command again when no "
                    "node is up",
                    EXIT_REFUSED,
                    code="ports.nodes-are-up",
                )
        base = self.free_ports(count)
        self._keep(base=base, count=count)
        return base

    def free_ports(self, count: int) -> int:
        """Return the first of `count` free ports in a row that no other cluster has reserved.

        A cluster reserves ports for all of its nodes, also for nodes that do not run, on whose ports nobody
        listens. Therefore its saved ports count, whoever's cluster it is.

        Raises:
            UserError: There are not enough ports.
        """
        seed = int(self.path.name, 16)
        try:
            return free_range(count, seed, self._ports_of_others())
        except UserError:
            # Clusters that are gone may have left their saved ports behind.
            return free_range(count, seed)

    def _slurmdbd_port(self) -> int:
        """Return slurmdbd's port. It is outside of the nodes' ports, which stay if accounting is switched."""
        note = self.path / "slurmdbd-port"
        with contextlib.suppress(OSError, ValueError):
            port = int(note.read_text())
            if wait_at_most(lambda: self._is_own(port), LOOK_SECONDS, LOOK_EVERY_SECONDS):
                return port
        kept_ranges = [range(kept[0], sum(kept))] if (kept := self.kept_ports()) is not None else []
        chosen = free_range(1, int(self.path.name, 16), [*kept_ranges, *self._ports_of_others()])
        files.write(note, str(chosen).encode())
        return chosen

    def _is_own(self, port: int) -> bool:
        return ports.free(port) or port in ports.listening(self.pids())

    def _ports_of_others(self) -> list[range]:
        notes = set(self.path.parent.glob(f"*/{PORTS}"))
        if self.path.parent == locations.run_root():
            # Only their owner can read what is in run directories.
            notes |= {note for root in locations.run_roots() for note in root.glob(f"*{addresses.PUBLIC}")}
        own_files = {self.path / PORTS, addresses.public_note(self.path)}
        reserved = [_reserved(_content(note)) for note in notes - own_files]
        return [range(kept[0], sum(kept)) for kept in reserved if kept is not None]

    def _usable(self, base: int, count: int) -> bool:
        """Whether the ports can be used: no other program has the controller's port, or blocks idle nodes.

        A daemon of the cluster that ends or starts during a look would seem to be another program, and all
        nodes would be cut off. So only looks that agree for a while count.
        """
        return wait_at_most(lambda: self._seem_usable(base, count), LOOK_SECONDS, LOOK_EVERY_SECONDS)

    def _seem_usable(self, base: int, count: int) -> bool:
        taken = {port for port in range(base, base + count) if not ports.free(port)}
        if not taken:
            return True
        own_ports = ports.listening(self.pids())
        # New ports would end the jobs of running nodes. A node whose port is taken reports that at its boot.
        return base not in taken - own_ports and bool(taken & own_ports)

    def kept_ports(self) -> tuple[int, int] | None:
        """Return the first saved port and the number of ports; `None` if none are saved."""
        return _reserved(self._kept())

    def _kept_blocks(self) -> port_blocks.Blocks:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            return port_blocks.parse_blocks(self._kept()["blocks"])
        return {}

    def _kept(self) -> dict[str, Any]:
        """Return what is saved of the ports; empty if nothing is, or if the file is damaged."""
        return _content(self.path / PORTS)

    def _keep(self, **values: object) -> None:
        kept = {**self._kept(), **values}
        files.write(self.path / PORTS, json.dumps(kept).encode())
        if (reserved := _reserved(kept)) is not None:
            public = {"base": reserved[0], "count": reserved[1]}
            files.write(addresses.public_note(self.path), json.dumps(public).encode())


def _content(note: Path) -> dict[str, Any]:
    """Return what a note of ports, perhaps another user's, says; empty if there is none or it is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, foreign.UnusableError):
        return dict(json.loads(foreign.read(note, NOTE_LENGTH).data))
    return {}


def _reserved(note: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first of the ports and their number; `None` if the note does not say."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return int(note["base"]), int(note["count"])
    return None


def free_range(
    count: int, seed: int, taken: Sequence[range] = (), within: range = range(FIRST_PORT, LAST_PORT)
) -> int:
    """Return the first of `count` free ports in a row on the loopback.

    Args:
        seed: Decides where the search begins, so that two clusters rarely choose the same ports.
        taken: Reserved ports, on which nobody may listen yet.
        within: The range of the search.

    Raises:
        UserError: There is no such range.
    """
    span = len(within) - count
    if span < 0:
        raise UserError(
            f"the nodes' ports are {count:,}, and {len(within):,} may be used: lower nodes.max",
            code="ports.too-many",
        )
    base = within.start + seed % (span + 1)
    tried = 0
    while tried <= span:
        if base + count > within.stop:
            base = within.start
        backwards = range(base + count - 1, base - 1, -1)
        busy = next((p for p in backwards if any(p in of for of in taken) or not ports.free(p)), None)
        if busy is None:
            return base
        tried += busy + 1 - base
        base = busy + 1
    raise UserError(
        f"no {count} free ports in a row between {within.start} and {within.stop}; end what listens there",
        code="ports.not-free",
    )


def user() -> str:
    """Return this user's name from the user database. $USER may be another user's, after `su` for example.

    Raises:
        UserError: Exit 3; this user has no name, or one that Slurm cannot know.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise UserError(
            f"user {uid} has no name on this machine, and Slurm needs one. Have a line added to /etc/passwd "
            f"(as root: echo 'me:x:{uid}:{gid}::/tmp:/bin/sh' >>/etc/passwd), or start the container for a "
            "user that its image knows.",
            EXIT_REFUSED,
            code="user.no-name",
        ) from None
    try:
        users.spelled(name)
    except ValueError as error:
        raise UserError(
            f"the cluster would belong to user {name!r}: {error}. Run the command as another user.",
            EXIT_REFUSED,
            code="user.name-form",
        ) from None
    return name
