"""The rules of the security groups as plain data: who may reach whom, on which ports.

The functions are pure, so that a test can read all rules. A rule's description is the one that EC2 shows. EC2
refuses a description with an apostrophe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.clouds.firewall import ANYWHERE, NFS, Rule, exports, outside, roles, slurm
from node.model import ClusterDesign

LUSTRE = ((988, 988), (1018, 1023))
"""The ports of Lustre. FSx refuses to make a file system whose group does not admit these (LustreGuide)."""

STORAGE = "storage"
"""The group of the cluster's own file systems."""
OWNERS = "sg-"
"""The beginning of the id of a group that the stack file names."""


def groups(design: ClusterDesign) -> tuple[str, ...]:
    """The security groups that a design needs."""
    images = ("image",) if design.image.bake else ()
    own = (STORAGE,) if STORAGE in {group for _, group in _services(design)} else ()
    return (*roles(design), *own, *images)


def rules(design: ClusterDesign) -> list[Rule]:
    """Every rule of a design's security groups. All other traffic is refused."""
    return [*_machines(design), *slurm(design), *outside(design), *_storage(design)]


def lustre_stays(design: ClusterDesign) -> bool:
    """Whether a Lustre file system stays after a destroy: then its interfaces keep its group in use."""
    return any(mount.kind == "fsx_lustre" and mount.keep for mount in design.mounts)


def _services(design: ClusterDesign) -> Iterator[tuple[str, str]]:
    """The kind and the security group of each file system that a service of AWS serves, once.

    Those of the cluster have a group of their own; an existing one has that of its owner.
    """
    served = [mount for mount in design.mounts if mount.kind in ("efs", "fsx_lustre")]
    yield from dict.fromkeys((mount.kind, mount.security_group or STORAGE) for mount in served)


def _machines(design: ClusterDesign) -> Iterator[Rule]:
    for role in roles(design):
        yield Rule(role, "out", ANYWHERE, None, "packages, AWS services, downloads of users")
    if design.image.bake:
        # Nobody connects to a machine that becomes an image. Its agent connects to Image Builder instead.
        yield Rule("image", "out", ANYWHERE, None, "packages, AWS services")
    # EFA traffic is not IP traffic. Only a rule that names the group itself lets it out.
    yield Rule("compute", "in", "compute", None, "jobs of several nodes, EFA")
    yield Rule("compute", "out", "compute", None, "jobs of several nodes, EFA")


def _storage(design: ClusterDesign) -> Iterator[Rule]:
    clients = roles(design)
    yield from exports(design)
    for kind, group in _services(design):
        yield from _nfs(clients, group) if kind == "efs" else _lustre(clients, group)


def _nfs(clients: Sequence[str], group: str) -> Iterator[Rule]:
    for role in clients:
        yield Rule(group, "in", role, NFS, "EFS")


def _lustre(clients: Sequence[str], group: str) -> Iterator[Rule]:
    for ports in LUSTRE:
        if group == STORAGE:
            yield Rule(group, "in", group, ports, "Lustre servers among themselves")
            yield Rule(group, "out", group, ports, "Lustre servers among themselves")
        for role in clients:
            yield Rule(group, "in", role, ports, "Lustre")
            yield Rule(group, "out", role, ports, "Lustre callbacks")
            yield Rule(role, "in", group, ports, "Lustre callbacks")
