"""Which machine images a design needs when it bakes them, and what each holds: pure, for every cloud.

Machines that need the same have one image. One that has an image of its own in the stack file needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.node.bootstrap.vm import drivers, packages
from infra.node.model import ClusterDesign, Partition

ROLE = "image"
"""The role of a machine that is to become an image."""


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What an image holds, and who boots from it.

    Attributes:
        name: controller, login, compute, compute-nvidia-open-efa, …: the same whichever others there are.
        role: whose packages it holds.
        members: the hosts' or the partitions' names.
        disk_gib: the smallest root disk among them: the image has to fit.
        partition: one of the partitions, whose drivers it holds; None for hosts.
    """

    name: str
    role: str
    members: tuple[str, ...]
    disk_gib: int
    partition: Partition | None = None

    @property
    def host(self) -> str:
        """The name of the machine that becomes the image, as in its boot report: no node has such a one."""
        return f"{ROLE}-{self.name}"


def kinds(design: ClusterDesign) -> tuple[ImageKind, ...]:
    """The images of a design, whether it bakes them or not: the hosts', then in the partitions' order."""
    found: dict[str, ImageKind] = {}
    for host in design.hosts:
        if host.image is None:
            _add(found, ImageKind(host.role, host.role, (host.name,), host.disk_gib))
    for partition in design.partitions:
        if partition.image is None:
            name = "-".join(["compute", *_drivers(partition)])
            _add(found, ImageKind(name, "compute", (partition.name,), partition.disk_gib, partition))
    return tuple(found.values())


def named(design: ClusterDesign, host: str) -> ImageKind:
    """The kind that a machine of the role `image` is to become.

    Raises:
        SystemExit: the design has no such kind.
    """
    there = {kind.host: kind for kind in kinds(design)}
    if host not in there:
        raise SystemExit(f"{host} is no image of this cluster's (there is: {', '.join(there)})")
    return there[host]


def content(design: ClusterDesign, kind: ImageKind) -> dict[str, Any]:
    """What an image of a kind holds. Nothing in it depends on how many machines boot from it, what they cost,
    or what runs on them."""
    return {
        "role": kind.role,
        "packages": packages.of_role(design, kind.role),
        "lustre": any(mount.kind == "fsx_lustre" and kind.role in mount.roles for mount in design.mounts),
        "drivers": [] if kind.partition is None else _drivers(kind.partition),
    }


def _drivers(partition: Partition) -> list[str]:
    """What a partition's nodes need beyond packages, as words of a name."""
    accelerator = partition.accelerator
    words = []
    if accelerator is not None and drivers.has_nvidia(accelerator):
        words.append("nvidia-closed" if drivers.closed(accelerator) else "nvidia-open")
        words += ["switched"] if drivers.switched(accelerator) else []
    if accelerator is not None and drivers.has_neuron(accelerator):
        words.append("neuron")
    return words + (["efa"] if partition.efa else [])


def _add(found: dict[str, ImageKind], kind: ImageKind) -> None:
    there = found.get(kind.name)
    if there is None:
        found[kind.name] = kind
        return
    found[kind.name] = ImageKind(
        kind.name,
        kind.role,
        (*there.members, *kind.members),
        min(there.disk_gib, kind.disk_gib),
        there.partition,
    )
