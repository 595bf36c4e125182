"""The local cluster's run directory: what lies where, and the ports that it chose and remembers."""

from __future__ import annotations

import getpass
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UserError
from infra.local.cloud.machines import usable_python
from infra.node.model import ClusterDesign, Settings, Site
from infra.node.slurm.conf import ports_needed
from infra.runner import locations

# Below the range from which the kernel takes ports for outgoing connections (32768 by default).
FIRST_PORT, LAST_PORT = 16800, 32600


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one cluster on this machine."""

    path: Path

    @classmethod
    def of(cls, project: Path, stack: str) -> RunDirectory:
        return cls(locations.check_run_dir(project, stack))

    @classmethod
    def make(cls, project: Path, stack: str) -> RunDirectory:
        """Create it, with the links to what outlives the cluster."""
        run = cls(locations.make_run_dir(project, stack))
        for folder in (run.cloud, run.bucket, run.path / "log", run.shared):
            folder.mkdir(exist_ok=True)
        _link(run.path / "python3", Path(usable_python()))
        apps = cache_root() / "apps"
        (apps / "envs").mkdir(parents=True, exist_ok=True)
        _link(run.apps, apps)
        return run

    @property
    def cloud(self) -> Path:
        return self.path / "cloud"

    @property
    def agent_socket(self) -> Path:
        return self.cloud / "agent.sock"

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
        """The cluster's own command (`infra.node.tool`)."""
        return self.path / "code" / "current" / "bin" / "slurm-stacks"

    def settings(self, design: ClusterDesign) -> Settings:
        """The design with this machine's facts: the ports are chosen on the first call and kept."""
        base = self._ports(1 + ports_needed(design))
        return Settings(
            design,
            Site(
                root=str(self.path),
                user=getpass.getuser(),
                controller_host="localhost",
                controller_address="127.0.0.1",
                slurmctld_port=base,
                slurmd_port=base + 1,
                python=str(self.path / "python3"),
                apps=str(self.apps),
                shared=str(self.shared),
                driver={"socket": str(self.agent_socket)},
            ),
        )

    def _ports(self, count: int) -> int:
        memory = self.path / "ports.json"
        if memory.exists():
            kept = json.loads(memory.read_text())
            base, have = int(kept["base"]), int(kept["count"])
            if have >= count:
                return base
            # What runs keeps its ports if those that follow are free for the rest.
            if base + count <= LAST_PORT and all(map(_free, range(base + have, base + count))):
                return self._keep_ports(base, count)
        return self._keep_ports(free_range(count, int(self.path.name, 16)), count)

    def _keep_ports(self, base: int, count: int) -> int:
        (self.path / "ports.json").write_text(json.dumps({"base": base, "count": count}))
        return base


def free_range(count: int, seed: int) -> int:
    """The first port of `count` free ones in a row on loopback.

    Args:
        seed: where the search begins, so that two clusters rarely look at the same ports.

    Raises:
        UserError: there is no such range.
    """
    span = LAST_PORT - FIRST_PORT - count
    if span < 0:
        raise UserError(
            f"{count} nodes need {count} ports, and {LAST_PORT - FIRST_PORT} may be used: lower nodes.max"
        )
    base = FIRST_PORT + seed % (span + 1)
    tried = 0
    while tried <= span:
        if base + count > LAST_PORT:
            base = FIRST_PORT
        busy = next((p for p in range(base + count - 1, base - 1, -1) if not _free(p)), None)
        if busy is None:
            return base
        tried += busy + 1 - base
        base = busy + 1
    raise UserError(
        f"no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}; end what listens there"
    )


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # As slurmctld binds: a port in TIME_WAIT is free for it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def cache_root() -> Path:
    """What is worth keeping between clusters: training environments and made data."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "slurm-stacks"


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(link)
