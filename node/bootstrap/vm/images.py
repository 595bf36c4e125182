"""The machine images that a design with baked images needs, and their content, for all clouds. Pure code.

Machines with the same needs share an image. A machine with its own image in the stack file needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node.bootstrap.vm import buckets, drivers, nvidia_gpus, packages, slurm_packages
from node.design.model import ClusterDesign, Partition
from node.design.storage import BUCKETS

ROLE = "image"
"""The role of a machine that becomes an image."""


@dataclass(frozen=True, slots=True)
class ImageKind:
    """The content of an image, and the machines that boot from it.

    Attributes:
        name: Controller, login, compute, compute-nvidia-open-efa, …. It does not depend on the other images.
        role: The role whose packages the image holds.
        members: The names of the hosts or partitions that use the image.
        disk_gib: The smallest root disk of the members, into which the image must fit.
        partition: One of the partitions, whose drivers the image holds. `None` for hosts.
    """

    name: str
    role: str
    members: tuple[str, ...]
    disk_gib: int
    partition: Partition | None = None

    @property
    def host(self) -> str:
        """The name of the machine that becomes the image, also in its boot report. No node has this name."""
        return f"{ROLE}-{self.name}"


def kinds(design: ClusterDesign) -> tuple[ImageKind, ...]:
    """Return the images of a design, whether it bakes them or not: of the hosts, then of the partitions."""
    images: dict[str, ImageKind] = {}
    for host in design.hosts:
        if host.image is None:
            _add(images, ImageKind(host.role, host.role, (host.name,), host.disk_gib))
    for partition in design.partitions:
        if partition.image is None:
            name = "-".join(["compute", *_drivers(partition)])
            _add(images, ImageKind(name, "compute", (partition.name,), partition.disk_gib, partition))
    return tuple(images.values())


def named(design: ClusterDesign, host: str) -> ImageKind:
    """Return the image that a machine of the role `image` becomes.

    Raises:
        SystemExit: The design has no such image.
    """
    known = {kind.host: kind for kind in kinds(design)}
    if host not in known:
        raise SystemExit(f"{host} is no image of this cluster (known: {', '.join(known)})")
    return known[host]


def content(design: ClusterDesign, kind: ImageKind) -> dict[str, Any]:
    """Return the content of an image.

    It does not depend on the number of machines that boot from it, on their price, on their jobs, or on the
    order in which packages are asked for.
    """
    packaged = design.containers.packages if design.containers else ()
    clients = {mount.kind for mount in design.mounts if kind.role in mount.roles} & set(BUCKETS)
    return {
        **({"containers": [package.sha256 for package in packaged]} if packaged else {}),
        **({"buckets": [*sorted(clients), buckets.VERSION]} if clients else {}),
        **slurm_packages.content(design.slurm),
        **({"revision": design.image.revision} if design.image.revision is not None else {}),
        "role": kind.role,
        "packages": sorted(packages.of_role(design, kind.role)),
        "lustre": any(mount.kind == "fsx_lustre" and kind.role in mount.roles for mount in design.mounts),
        "drivers": [] if kind.partition is None else _drivers(kind.partition),
    }


def _drivers(partition: Partition) -> list[str]:
    """Return the drivers that a partition's nodes need, as parts of an image's name."""
    accelerator = partition.accelerator
    words = []
    if accelerator is not None and drivers.has_nvidia(accelerator):
        words.append("nvidia-closed" if nvidia_gpus.closed(accelerator) else "nvidia-open")
        words += ["switched"] if nvidia_gpus.switched(accelerator) else []
    if accelerator is not None and drivers.has_neuron(accelerator):
        words.append("neuron")
    return words + (["efa"] if partition.aws.efa else [])


def _add(found: dict[str, ImageKind], kind: ImageKind) -> None:
    kind_before = found.get(kind.name)
    if kind_before is None:
        found[kind.name] = kind
        return
    found[kind.name] = ImageKind(
        kind.name,
        kind.role,
        (*kind_before.members, *kind.members),
        min(kind_before.disk_gib, kind.disk_gib),
        kind_before.partition,
    )
