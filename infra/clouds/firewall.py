"""Who may reach whom in a cluster, on which ports, on every cloud.

The functions are pure, so that a test can read all rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from node.bootstrap import key_server, report_server
from node.bootstrap.vm.images import ROLE as IMAGE
from node.design import names
from node.design.model import ClusterDesign

Ports = tuple[int, int]
"""The first and the last port."""

ANYWHERE = "0.0.0.0/0"
ALL = "all"
SSH: Ports = (22, 22)
NFS: Ports = (2049, 2049)
SLURMCTLD: Ports = (6817, 6817)
SLURMD: Ports = (6818, 6818)
SLURMDBD: Ports = (6819, 6819)
KEYS: Ports = (key_server.PORT, key_server.PORT)
REPORTS: Ports = (report_server.PORT, report_server.PORT)
DNS: Ports = (names.PORT, names.PORT)
SRUN: Ports = (32768, 60999)
"""The ports where a waiting srun or salloc listens for its nodes and for slurmctld. Linux chooses them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a firewall.

    Attributes:
        group: The machines that the rule is for: controller | login | compute | image | storage.
        direction: in | out.
        peer: Another group, or a network in CIDR notation.
        ports: The first and the last port. `None` means every protocol.
        protocol: tcp | udp.
    """

    group: str
    direction: str
    peer: str
    ports: Ports | None
    description: str
    protocol: str = "tcp"

    @property
    def name(self) -> str:
        """The rule's name, which is unique and does not depend on the other rules."""
        ports = ALL if self.ports is None else str(self.ports[0])
        peer = self.peer.replace("/", "-").replace(":", "-").replace(".", "-")
        protocol = "" if self.protocol == "tcp" else f"-{self.protocol}"
        return f"{self.group}-{self.direction}-{peer}-{ports}{protocol}"


def roles(design: ClusterDesign) -> tuple[str, ...]:
    """Return the roles of the machines that a design has."""
    login = any(host.role == "login" for host in design.hosts)
    return (*(("controller",) if design.hosts else ()), *(("login",) if login else ()), "compute")


def identities(design: ClusterDesign) -> tuple[str, ...]:
    """Return the roles that have permissions of their own.

    Where images are baked, machines that become images are among them.
    """
    return (*roles(design), *((IMAGE,) if design.image.bake else ()))


def slurm(design: ClusterDesign) -> Iterator[Rule]:
    """Yield Slurm's own connections, and SSH inside the cluster."""
    submit = [role for role in roles(design) if role != "compute"]
    for role in submit:
        yield Rule("compute", "in", role, SLURMD, "slurmctld and srun to slurmd")
        yield Rule("compute", "in", role, SSH, "users to the nodes of their jobs")
        yield Rule(role, "in", "compute", SRUN, "nodes to a waiting srun")
    if "controller" in submit:
        yield Rule("controller", "in", "compute", SLURMCTLD, "slurmd to slurmctld")
        yield Rule("controller", "in", "compute", REPORTS, "root of a node to its boot report")
        for role in roles(design):
            if role != "controller":
                yield Rule("controller", "in", role, KEYS, "root of a machine to the munge key")
                # A client asks again over TCP for an answer that is too long for UDP.
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
    """Yield port 22 from outside, only where the stack file asks for it and only to public machines."""
    if design.access.mode != "ssh":
        return
    for role in dict.fromkeys(host.role for host in design.hosts if "public" in host.tags):
        for cidr in design.access.ssh_cidrs:
            yield Rule(role, "in", cidr, SSH, "access.ssh_cidrs")


def exports(design: ClusterDesign) -> Iterator[Rule]:
    """Yield NFS from the other machines to the controller, where it exports directories."""
    if any(mount.kind == "nfs" and mount.served_by == "controller" for mount in design.mounts):
        for role in roles(design):
            if role != "controller":
                yield Rule("controller", "in", role, NFS, "/home and /apps from the controller")
