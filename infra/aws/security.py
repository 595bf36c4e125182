"""The security groups' rules as data: who may reach whom, on what. Pure, so that a test reads them whole.

EC2 refuses a rule whose words have an apostrophe: what a rule says is its description there.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.clouds.reach import (
    ANYWHERE,
    NFS,
    Rule,
    exports,
    outside,
    roles,
    slurm,
)
from infra.node.model import ClusterDesign

LUSTRE = ((988, 988), (1018, 1023))
"""FSx for Lustre refuses to make a file system whose group does not admit these (LustreGuide)."""


def groups(design: ClusterDesign) -> tuple[str, ...]:
    """The groups that a design needs."""
    baked = ("image",) if design.image.bake else ()
    return (*roles(design), *(("storage",) if _services(design) else ()), *baked)


def rules(design: ClusterDesign) -> list[Rule]:
    """Every rule of a design's groups. What is not here is closed."""
    return [*_machines(design), *slurm(design), *outside(design), *_storage(design)]


def _services(design: ClusterDesign) -> set[str]:
    """Kinds of file systems that a service serves, behind a group of their own."""
    return {mount.kind for mount in design.mounts} & {"efs", "fsx_lustre"}


def _machines(design: ClusterDesign) -> Iterator[Rule]:
    for role in roles(design):
        yield Rule(role, "out", ANYWHERE, None, "packages, AWS services, downloads of users")
    if design.image.bake:
        # Nobody reaches a machine that becomes an image: Image Builder asks its agent, which asks outwards.
        yield Rule("image", "out", ANYWHERE, None, "packages, AWS services")
    # EFA's traffic is no IP traffic: only a rule that names the group itself lets it out.
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
