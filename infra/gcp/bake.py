"""Images of the cluster's own: one for each kind of machine that the design has.

A machine goes through the steps of a boot that an image can hold (`infra.node.bootstrap.vm.baking`) and
stops; then an image is made of its disk. Their names have the digest of what goes in: the same image is made
once, and another content makes another one beside it, from which new machines then start.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_command as command
from pulumi_gcp import compute

from infra.clouds import operations, recipes
from infra.clouds.cloud import Place
from infra.clouds.recipes import Recipe
from infra.gcp import images
from infra.gcp.labels import labels
from infra.gcp.metadata import SCOPES, metadata
from infra.gcp.names import fitting
from infra.gcp.operations import MODULE
from infra.gcp.parts import Station
from infra.node.bootstrap.vm.images import ROLE
from infra.node.elastic.drivers.gce_names import NAME_LENGTH
from infra.node.model import ClusterDesign

DISK_GIB = 16
"""What an image needs: the largest holds a second kernel and NVIDIA's driver. No machine's disk may be
smaller than the image that it starts from."""
BUILD = "2h"


class GcpBake(pulumi.ComponentResource):
    """The machines that become images, and the images.

    A machine stays as long as its image, off: it costs its disk alone, and the engine need not be told that
    somebody else has ended it.

    Attributes:
        made: role -> host or partition -> its image's self link.

    Args:
        station: of the machines that become images; its image is the one with which they begin.
        after: what such a machine needs when it starts.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        station: Station,
        after: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpBake", name, None, opts)
        self._name = name
        self._design = design
        self._station = station
        self._after = list(after)
        made = {recipe.kind.name: self._image(recipe) for recipe in recipes.recipes(design)}
        self.made = recipes.of_members(made, design)
        self.register_outputs({"images": made})

    def _image(self, recipe: Recipe) -> pulumi.Output[str]:
        """Make an image. Returns its self link, once it is there."""
        design, own = self._design, f"{self._name}-{recipe.kind.name}"
        parent = pulumi.Output.from_input(self._station.image)
        size = None if design.image.id is not None else min(DISK_GIB, recipe.kind.disk_gib)
        called: pulumi.Output[str] = parent.apply(lambda known: image_name(design, recipe, known, size))
        marks = labels(design, role=ROLE, host=recipe.kind.host)
        disk = compute.Disk(
            f"{own}-disk",
            name=called,
            description=f"becomes the {recipe.kind.name} image of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            image=parent,
            size=size,
            type=images.DISK_TYPE,
            labels=marks,
            opts=pulumi.ResourceOptions(parent=self),
        )
        baked = self._wait(own, recipe, self._machine(own, recipe, called, disk, marks))
        image = compute.Image(
            own,
            name=called,
            description=f"slurm-stacks: {recipe.kind.name} of the cluster {design.name}",
            project=design.project,
            source_disk=disk.self_link,
            storage_locations=[str(design.region)],
            labels=marks,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[baked]),
        )
        return image.self_link

    def _machine(
        self,
        own: str,
        recipe: Recipe,
        called: pulumi.Output[str],
        disk: compute.Disk,
        marks: dict[str, str],
    ) -> compute.Instance:
        """Without a device: an image needs none to hold its driver."""
        design, station = self._design, self._station
        return compute.Instance(
            f"{own}-machine",
            name=called,
            description=f"becomes the {recipe.kind.name} image of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            machine_type=design.controller().machine,
            boot_disk=compute.InstanceBootDiskArgs(source=disk.self_link, auto_delete=False),
            network_interfaces=[compute.InstanceNetworkInterfaceArgs(subnetwork=station.subnetwork)],
            service_account=compute.InstanceServiceAccountArgs(email=station.account, scopes=SCOPES),
            # One that Google started again would be half an image.
            scheduling=compute.InstanceSchedulingArgs(on_host_maintenance="MIGRATE", automatic_restart=False),
            shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
                enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=False
            ),
            metadata=metadata(design, station, ROLE, recipe.kind.host),
            labels=marks,
            allow_stopping_for_update=True,
            deletion_protection=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._after),
        )

    def _wait(self, own: str, recipe: Recipe, machine: compute.Instance) -> command.local.Command:
        """Until the machine has done its steps, and has stopped."""
        design = self._design
        place = Place.of(design).arguments()
        line = pulumi.Output.all(bucket=self._station.bucket, instance=machine.name).apply(
            lambda known: operations.line(
                MODULE,
                "baked",
                design,
                *place,
                *("--bucket", known["bucket"], "--instance", known["instance"], "--host", recipe.kind.host),
            )
        )
        return command.local.Command(
            f"{own}-baked",
            create=line,
            environment={"MACHINE": machine.instance_id},
            triggers=[machine.instance_id],
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[machine],
                custom_timeouts=pulumi.CustomTimeouts(create=BUILD),
            ),
        )


def image_name(design: ClusterDesign, recipe: Recipe, parent: str, size: int | None) -> str:
    """Of an image, and of the machine and the disk that become it.

    Args:
        parent: what it begins with.
        size: of its disk, GiB.
    """
    return fitting(recipe.name(design.name, f"{parent} {size}"), NAME_LENGTH)
