"""The cluster's own images: one for each kind of machine of the design.

A machine goes through the boot steps whose results an image can hold (`node.bootstrap.vm.baking`) and stops.
Then an image is made of its disk. The names have the digest of the image's content. The same content is built
once. Other content makes another image beside the first, and new machines then start from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_command as command
from pulumi_gcp import compute

from infra.clouds import commands, recipes
from infra.clouds.commands import ClusterRef
from infra.clouds.recipes import Recipe
from infra.gcp.access import OPERATIONS
from infra.gcp.instance_templates import ROOT_DISK_TYPE, SCOPES, GcpRoleResources, metadata, migrates
from infra.gcp.names import labels, shortened
from infra.program.launcher import INTERPRETER
from node.bootstrap.vm.images import ROLE
from node.design.model import ClusterDesign
from node.elastic.drivers.gce.names import NAME_LENGTH, SLURM, value

DISK_GIB = 16
"""The size of an image. The largest image holds a second kernel and NVIDIA's driver. No machine's disk may be
smaller than the image that it starts from."""
BUILD = "2h"


class GcpImages(pulumi.ComponentResource):
    """The machines that become images, and the images.

    A machine stays, switched off, as long as its image does. It costs only its disk, and the engine does not
    find a machine missing that something else has ended.

    Attributes:
        images: role -> host or partition -> the self link of its image.

    Args:
        resources: The resources of the machines that become images. They start from its image.
        after: What such a machine needs when it starts.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources: GcpRoleResources,
        after: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpImages", name, None, opts)
        self._name = name
        self._design = design
        self._resources = resources
        self._after = list(after)
        built = {recipe.kind.name: self._image(recipe) for recipe in recipes.recipes(design)}
        self.images = recipes.images_by_member(built, design)
        self.register_outputs({"images": built})

    def _image(self, recipe: Recipe) -> pulumi.Output[str]:
        """Make an image, and return its self link once it exists."""
        design, resource = self._design, f"{self._name}-{recipe.kind.name}"
        parent = pulumi.Output.from_input(self._resources.image)
        size = None if design.image.id is not None else min(DISK_GIB, recipe.kind.disk_gib)
        name: pulumi.Output[str] = parent.apply(lambda known: image_name(design, recipe, known, size))
        own_labels = labels(design, role=ROLE, host=recipe.kind.host)
        release = recipes.slurm_release(design)
        disk = compute.Disk(
            f"{resource}-disk",
            name=name,
            description=f"becomes the {recipe.kind.name} image of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            image=parent,
            size=size,
            type=ROOT_DISK_TYPE,
            labels=own_labels,
            opts=pulumi.ResourceOptions(parent=self),
        )
        wait = self._wait(resource, recipe, self._machine(resource, recipe, name, disk, own_labels))
        image = compute.Image(
            resource,
            name=name,
            description=f"slurm-stacks: {recipe.kind.name} of the cluster {design.name}",
            project=design.project,
            source_disk=disk.self_link,
            storage_locations=[str(design.region)],
            labels={**own_labels, **({} if release is None else {SLURM: value(release)})},
            # The provider waits 20 minutes.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[wait], custom_timeouts=pulumi.CustomTimeouts(create=BUILD)
            ),
        )
        return image.self_link

    def _machine(
        self,
        resource: str,
        recipe: Recipe,
        name: pulumi.Output[str],
        disk: compute.Disk,
        own_labels: dict[str, str],
    ) -> compute.Instance:
        """Return the machine that becomes an image. It has no GPU: an image can hold a driver without one."""
        design, resources = self._design, self._resources
        return compute.Instance(
            f"{resource}-machine",
            name=name,
            description=f"becomes the {recipe.kind.name} image of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            machine_type=design.controller().instance_type,
            boot_disk=compute.InstanceBootDiskArgs(source=disk.self_link, auto_delete=False),
            network_interfaces=[compute.InstanceNetworkInterfaceArgs(subnetwork=resources.subnetwork)],
            service_account=compute.InstanceServiceAccountArgs(email=resources.account, scopes=SCOPES),
            # A machine that Google started again would become half an image.
            scheduling=compute.InstanceSchedulingArgs(
                on_host_maintenance="MIGRATE" if migrates(design.controller().instance_type) else "TERMINATE",
                automatic_restart=False,
            ),
            shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
                enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=False
            ),
            metadata=metadata(design, resources, ROLE, recipe.kind.host),
            labels=own_labels,
            allow_stopping_for_update=True,
            deletion_protection=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._after),
        )

    def _wait(self, resource: str, recipe: Recipe, machine: compute.Instance) -> command.local.Command:
        """Wait until the machine has gone through its steps and stopped."""
        design = self._design
        arguments = ClusterRef.of(design).arguments()
        line = pulumi.Output.all(bucket=self._resources.bucket, instance=machine.name).apply(
            lambda known: commands.line(
                OPERATIONS,
                "baked",
                design,
                *arguments,
                *("--bucket", known["bucket"], "--instance", known["instance"], "--host", recipe.kind.host),
            )
        )
        return command.local.Command(
            f"{resource}-baked",
            create=line,
            interpreter=INTERPRETER,
            environment={"MACHINE": machine.instance_id},
            triggers=[machine.instance_id],
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[machine],
                custom_timeouts=pulumi.CustomTimeouts(create=BUILD),
            ),
        )


def image_name(design: ClusterDesign, recipe: Recipe, parent: str, size: int | None) -> str:
    """Return the name of an image, and of the machine and the disk that become it.

    Args:
        parent: The image that it is built from.
        size: The size of its disk in GiB.
    """
    return shortened(recipe.name(design.name, f"{parent} {size}"), NAME_LENGTH)
