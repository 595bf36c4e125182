"""The rules of the security groups as plain data: who may reach whom, on which ports.

The functions are pure, so that a test can read all rules. A rule's description is the one that EC2 shows. EC2
refuses a description with an apostrophe.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.clouds.firewall import ANYWHERE, NFS, Rule, exports, outside, roles, slurm
from node.model import ClusterDesign

LUSTRE = ((988, 988), (1018, 1023))
"""The ports of Lustre. FSx refuses to make a file system whose group does not admit these (LustreGuide)."""


def groups(design: ClusterDesign) -> tuple[str, ...]:
    """The security groups that a design needs."""
    images = ("image",) if design.image.bake else ()
    return (*roles(design), *(("storage",) if _services(design) else ()), *images)


def rules(design: ClusterDesign) -> list[Rule]:
    """Every rule of a design's security groups. All other traffic is refused."""
    return [*_machines(design), *slurm(design), *outside(design), *_storage(design)]


def _services(design: ClusterDesign) -> set[str]:
    """The kinds of file systems that a service of AWS serves. They have a security group of their own."""
    return {mount.kind for mount in design.mounts} & {"efs", "fsx_lustre"}


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
    if "efs" in _services(design):
        for role in clients:
            yield Rule("storage", "in", role, NFS, "EFS")
    if "fsx_lustre" in _services(design):
        for ports in LUSTRE:
            yield Rule("storage", "in", "storage", ports, "Lustre servers among themselves")
            yield Rule("storage", "out", "storage", ports, "Lustre servers among themselves")
            for role in clients:
                yield Rule("storage", "in", role, ports, "Lustre")
                yield Rule("storage", "out", role, ports, "Lustre callbacks")
                yield Rule(role, "in", "storage", ports, "Lustre callbacks")
