"""The local cluster's run directory: what lies where, and the ports and addresses that it remembers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.local.cloud import addresses, containers, groups, kind, network, view
from infra.local.cloud.containers import APPS, CGROUPS, SHARED
from infra.local.cloud.machines import of_cluster, usable_python
from infra.node import ports
from infra.node.bootstrap import files
from infra.node.bootstrap.vm import cloud_local
from infra.node.model import SLURMDBD_PORT, ClusterDesign, Settings, Site
from infra.node.slurm import blocks
from infra.node.slurm.places import BLOCKS, slurmd_addresses
from infra.runner import folders, locations

# Below the range from which the kernel takes ports for outgoing connections (32768 by default).
FIRST_PORT, LAST_PORT = 16800, 32600


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one cluster on this machine."""

    path: Path

    @classmethod
    def of(cls, project: Path, stack: str) -> RunDirectory:
        return cls(folders.check_run_dir(project, stack))

    @classmethod
    def make(cls, project: Path, stack: str) -> RunDirectory:
        """Create it, with the links to what outlives the cluster."""
        run = cls(folders.make_run_dir(project, stack))
        for folder in (run.cloud, run.bucket, run.path / "log", run.shared):
            folder.mkdir(exist_ok=True)
        files.link(run.path / "python3", usable_python())
        apps = locations.cache_root() / "apps"
        (apps / "envs").mkdir(parents=True, exist_ok=True)
        files.link(run.apps, str(apps))
        return run

    @property
    def cloud(self) -> Path:
        return self.path / "cloud"

    @property
    def agent_socket(self) -> Path:
        return containers.socket(self.path) if self.containers else self.cloud / "agent.sock"

    @property
    def cluster_file(self) -> Path:
        """Holds the name of the cluster that is up here."""
        return self.cloud / "cluster"

    @property
    def cluster(self) -> str | None:
        """The name of the cluster that is up here; None: there is none, or nobody has noted it."""
        with contextlib.suppress(OSError):
            return self.cluster_file.read_text() or None
        return None

    @property
    def bucket(self) -> Path:
        return self.path / "bucket"

    @property
    def apps(self) -> Path:
        return self.path / "apps"

    @property
    def shared(self) -> Path:
        return self.path / "shared"

    @property
    def tool(self) -> Path:
        """The cluster's own command (`infra.node.tool`), where machines are processes."""
        return self.path / "code" / "current" / "bin" / "slurm-stacks"

    def boot_log(self, host: str) -> Path:
        """What a machine's first process has printed, or a container machine on its console."""
        machine = self.disk(host) if self.containers else self.path
        return machine / "log" / f"boot-{host}.log"

    def disk(self, host: str) -> Path:
        """What outlives a container machine of this name: its logs, a controller's queue."""
        return containers.disk(self.path, host)

    @property
    def containers(self) -> bool:
        """Whether machines boot, with all that a machine has of its own."""
        return kind.read(self.path) == kind.CONTAINER

    @property
    def hosts(self) -> Path:
        """Names and addresses of the machines."""
        return self.cloud / "hosts"

    def settings(self, design: ClusterDesign) -> Settings:
        """The design with this machine's facts.

        Process machines have a port and an address each. They are chosen on the first call and kept; ports
        unless another program has taken them meanwhile. Container machines have an address each, and keep it.

        Raises:
            UserError: there are not enough free ports, or this user has no name.
        """
        if design.machines == kind.CONTAINER:
            return Settings(design, self._container_site(design))
        placed = blocks.lay_out(design.partitions, self._kept_blocks())
        with self._alone():
            base, first = self._ports(1 + blocks.needed(placed)), addresses.settle(self.path)
            slurmdbd_port = self._slurmdbd_port() if design.slurm.accounting else SLURMDBD_PORT
        self._keep("blocks", placed)
        own = addresses.usable(first)
        settings = Settings(
            design,
            Site(
                root=str(self.path),
                user=user(),
                controller_host="localhost",
                controller_address="127.0.0.1",
                slurmctld_port=base,
                slurmd_port=base + 1,
                first_address=addresses.nodes_from(first) if own else None,
                slurmdbd_port=slurmdbd_port,
                python=str(self.path / "python3"),
                apps=str(self.apps),
                shared=str(self.shared),
                driver={"socket": str(self.agent_socket), BLOCKS: blocks.text(placed)},
            ),
        )
        head = {machine.name: addresses.host(first, i) for i, machine in enumerate(design.hosts)}
        self._write_hosts(head | slurmd_addresses(settings) if own else {})
        # What machines that run have mounted follows.
        with contextlib.suppress(OSError):
            view.write_hosts(self.cloud)
        return settings

    def _write_hosts(self, given: Mapping[str, str]) -> None:
        self.cloud.mkdir(exist_ok=True)
        files.place(self.hosts, network.hosts_text(given).encode())

    def _container_site(self, design: ClusterDesign) -> Site:
        self._write_hosts(network.addresses(design, network.read_hosts(self.hosts)))
        driver = {
            "socket": cloud_local.SOCKET,
            "secret": "munge.key",
            # Its /etc/hosts is what DNS is on a cloud.
            "cloud_dns": "true",
            **({"cgroups": CGROUPS} if groups.old_controllers() else {}),
        }
        return Site(
            root="/",
            user=kind.SLURM_USER,
            controller_host="controller",
            controller_address=network.CONTROLLER,
            apps=APPS,
            shared=SHARED,
            driver=driver,
        )

    def _ports(self, count: int) -> int:
        if (kept := self._kept_ports()) is not None:
            base, have = kept
            # What runs keeps its ports if those that follow are free for the rest.
            more = range(base + have, base + count)
            if base + count <= LAST_PORT and all(map(ports.free, more)) and self._usable(base, have):
                return self._keep_ports(base, max(have, count))
        return self._keep_ports(self.free_ports(count), count)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other commands of this user from choosing until this one has noted what it chose."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def free_ports(self, count: int) -> int:
        """The first of `count` free ports in a row, none of them another cluster's.

        A cluster has ports for all its nodes, and as a rule few of them run: on the others nobody listens
        yet. So its note counts, as far as this user can read it; root can read every user's.

        Raises:
            UserError: there are not so many.
        """
        seed = int(self.path.name, 16)
        try:
            return free_range(count, seed, self._ports_of_others())
        except UserError:
            # Clusters that are gone may have left their notes.
            return free_range(count, seed)

    def _slurmdbd_port(self) -> int:
        """One port beside the block of the nodes, whose numbers stay when accounting comes or goes."""
        note = self.path / "slurmdbd-port"
        with contextlib.suppress(OSError, ValueError):
            port = int(note.read_text())
            if ports.free(port) or port in ports.listening(of_cluster(self.path)):
                return port
        mine = [range(kept[0], sum(kept))] if (kept := self._kept_ports()) is not None else []
        chosen = free_range(1, int(self.path.name, 16), [*mine, *self._ports_of_others()])
        files.place(note, str(chosen).encode())
        return chosen

    def _ports_of_others(self) -> list[range]:
        found = []
        files = set(self.path.parent.glob("*/ports.json"))
        if self.path.parent == locations.run_root():
            files |= {file for root in locations.run_roots() for file in root.glob("*/ports.json")}
        for file in files:
            if file.parent != self.path and (kept := RunDirectory(file.parent)._kept_ports()) is not None:
                found.append(range(kept[0], sum(kept)))
        return found

    def _usable(self, base: int, count: int) -> bool:
        """Whether no other program is in the way of the controller, nor of nodes none of which runs."""
        taken = {port for port in range(base, base + count) if not ports.free(port)}
        if not taken:
            return True
        ours = ports.listening(of_cluster(self.path))
        # Moving nodes that run would end their jobs; a node whose port is taken says so at its boot.
        return base not in taken - ours and bool(taken & ours)

    def _kept_ports(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads((self.path / "ports.json").read_text())
            return int(kept["base"]), int(kept["count"])
        return None

    def _keep_ports(self, base: int, count: int) -> int:
        self._keep("base", base)
        self._keep("count", count)
        return base

    def _kept_blocks(self) -> blocks.Blocks:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            return blocks.parse(json.dumps(json.loads((self.path / "ports.json").read_text())["blocks"]))
        return {}

    def _keep(self, name: str, value: object) -> None:
        kept: dict[str, object] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            kept = dict(json.loads((self.path / "ports.json").read_text()))
        files.place(self.path / "ports.json", json.dumps({**kept, name: value}).encode())


def free_range(
    count: int, seed: int, taken: Sequence[range] = (), within: range = range(FIRST_PORT, LAST_PORT)
) -> int:
    """The first port of `count` free ones in a row on loopback.

    Args:
        seed: where the search begins, so that two clusters rarely look at the same ports.
        taken: ports that are not to be had although nobody may listen there.
        within: where to look.

    Raises:
        UserError: there is no such range.
    """
    span = len(within) - count
    if span < 0:
        raise UserError(f"{count} nodes need {count} ports, and {len(within)} may be used: lower nodes.max")
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
        f"no {count} free ports in a row between {within.start} and {within.stop}; end what listens there"
    )


def user() -> str:
    """The name under which Slurm runs, by the user database: $USER may name anybody, after `su` for one.

    Raises:
        UserError: exit 3; this user has no name.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        uid, gid = os.getuid(), os.getgid()
        raise UserError(
            f"user {uid} has no name on this machine, and Slurm runs only for one that has. Have a line "
            f"added to /etc/passwd (as root: echo 'me:x:{uid}:{gid}::/tmp:/bin/sh' >>/etc/passwd), or, in a "
            "container, start it for a user that its image knows.",
            EXIT_REFUSED,
        ) from None
