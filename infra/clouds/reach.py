"""Who reaches whom in a cluster, on what, whichever cloud it is on. Pure, so that a test reads it whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.node import names
from infra.node.bootstrap import key_server
from infra.node.bootstrap.vm.images import ROLE as IMAGE
from infra.node.model import ClusterDesign

Ports = tuple[int, int]
"""First and last port."""

ANYWHERE = "0.0.0.0/0"
ALL = "all"
SSH: Ports = (22, 22)
NFS: Ports = (2049, 2049)
SLURMCTLD: Ports = (6817, 6817)
SLURMD: Ports = (6818, 6818)
SLURMDBD: Ports = (6819, 6819)
KEYS: Ports = (key_server.PORT, key_server.PORT)
DNS: Ports = (names.PORT, names.PORT)
SRUN: Ports = (32768, 60999)
"""Where a waiting srun or salloc listens for its nodes and for slurmctld: ports that Linux gives out."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Attributes:
    group: whose rule it is: controller | login | compute, or a file system's.
    way: in | out.
    peer: another group, or a network in CIDR notation.
    ports: first and last port; None: every protocol.
    protocol: tcp | udp.
    """

    group: str
    way: str
    peer: str
    ports: Ports | None
    why: str
    protocol: str = "tcp"

    @property
    def name(self) -> str:
        """Unique among the rules, and the same whichever others there are."""
        ports = ALL if self.ports is None else str(self.ports[0])
        peer = self.peer.replace("/", "-").replace(":", "-").replace(".", "-")
        protocol = "" if self.protocol == "tcp" else f"-{self.protocol}"
        return f"{self.group}-{self.way}-{peer}-{ports}{protocol}"


def roles(design: ClusterDesign) -> tuple[str, ...]:
    """The kinds of machines that a design has."""
    login = any(host.role == "login" for host in design.hosts)
    return (*(("controller",) if design.hosts else ()), *(("login",) if login else ()), "compute")


def kinds(design: ClusterDesign) -> tuple[str, ...]:
    """Those that have rights of their own: also machines that become images, where some are baked."""
    return (*roles(design), *((IMAGE,) if design.image.bake else ()))


def slurm(design: ClusterDesign) -> Iterator[Rule]:
    """Slurm's own connections, and SSH inside the cluster."""
    submit = [role for role in roles(design) if role != "compute"]
    for role in submit:
        yield Rule("compute", "in", role, SLURMD, "slurmctld and srun to slurmd")
        yield Rule("compute", "in", role, SSH, "users to the nodes of their jobs")
        yield Rule(role, "in", "compute", SRUN, "nodes to a waiting srun")
    if "controller" in submit:
        yield Rule("controller", "in", "compute", SLURMCTLD, "slurmd to slurmctld")
        for role in roles(design):
            if role != "controller":
                yield Rule("controller", "in", role, KEYS, "root of a machine to the munge key")
                # An answer that is too long for UDP is asked for again over TCP.
                for protocol in ("udp", "tcp"):
                    yield Rule("controller", "in", role, DNS, "names of the machines", protocol)
    if design.slurm.accounting:
        for role in roles(design):
            if role != "controller":
                yield Rule("controller", "in", role, SLURMDBD, "sacct to slurmdbd")
    if "login" in submit:
        yield Rule("controller", "in", "login", SLURMCTLD, "sbatch and squeue to slurmctld")
        yield Rule("controller", "in", "login", SSH, "users from the login machine")
        yield Rule("login", "in", "controller", SRUN, "slurmctld to a waiting srun")


def outside(design: ClusterDesign) -> Iterator[Rule]:
    """Port 22 from outside: only where the stack file asks for it, and only to machines that are public."""
    if design.access.mode != "ssh":
        return
    for role in dict.fromkeys(host.role for host in design.hosts if "public" in host.tags):
        for cidr in design.access.ssh_cidrs:
            yield Rule(role, "in", cidr, SSH, "access.ssh_cidrs")


def exports(design: ClusterDesign) -> Iterator[Rule]:
    """What the controller exports, to everybody else."""
    if any(mount.kind == "nfs" for mount in design.mounts):
        for role in roles(design):
            if role != "controller":
                yield Rule("controller", "in", role, NFS, "/home and /apps from the controller")
