"""An instance template a partition: all that the elastic driver does not say when it launches nodes."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi_gcp import compute

from infra.gcp import images
from infra.gcp.labels import labels
from infra.gcp.metadata import SCOPES, metadata
from infra.gcp.names import fitting
from infra.gcp.parts import Station
from infra.machines import LOCAL_SSD_GIB, catalog
from infra.node.model import ClusterDesign, Partition

LONGEST_PREFIX = 37
"""Of a template's name: behind it the provider writes 26 characters that no other template has."""


class GcpFleets(pulumi.ComponentResource):
    """What nodes are made from: no node itself.

    A template names neither zone nor host: the driver says both. It is global, because `instances.bulkInsert`
    takes no regional ones (its reference shows global templates alone, and gcloud's bulk command takes no
    others). It can only be replaced, by one of another name, and the driver tells by the name which nodes are
    of an older one. Disks are encrypted, with keys that Google manages, as everything on Google Cloud is.

    Attributes:
        templates: partition -> the instance template's self link.

    Args:
        station: of compute machines.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        station: Station,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpFleets", name, None, opts)
        self._name = name
        self._design = design
        self._metadata = metadata(design, station, "compute")
        self.templates: dict[str, pulumi.Output[str]] = {
            partition.name: self._template(partition, station).self_link for partition in design.partitions
        }
        self.register_outputs({"templates": self.templates})

    def _template(self, partition: Partition, station: Station) -> compute.InstanceTemplate:
        design = self._design
        marks = labels(design, role="compute", partition=partition.name)
        what = f"node of partition {partition.name}, cluster {design.name}"
        return compute.InstanceTemplate(
            f"{self._name}-{partition.name}",
            name_prefix=prefix(design.name, partition.name),
            description=f"template of a {what}",
            instance_description=what,
            project=design.project,
            machine_type=partition.machine,
            guest_accelerators=_accelerators(partition),
            disks=_disks(partition, station.start_from(partition.name, partition.image), marks),
            network_interfaces=[
                # Without an access configuration it has no public address.
                compute.InstanceTemplateNetworkInterfaceArgs(subnetwork=station.subnetwork)
            ],
            scheduling=compute.InstanceTemplateSchedulingArgs(**scheduling(partition)),
            resource_policies=self._placement(partition),
            reservation_affinity=_reservation(partition),
            service_account=compute.InstanceTemplateServiceAccountArgs(email=station.account, scopes=SCOPES),
            shielded_instance_config=compute.InstanceTemplateShieldedInstanceConfigArgs(
                enable_vtpm=True,
                enable_integrity_monitoring=True,
                enable_secure_boot=partition.secure_boot,
            ),
            metadata=self._metadata,
            labels=marks,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _placement(self, partition: Partition) -> pulumi.Output[str] | None:
        """A compact policy of the partition's own: its nodes are close together, in one zone. Or the one that
        its reservation was made with, which is not the cluster's: a reservation takes no other."""
        design = self._design
        if partition.placement_policy is not None:
            place = f"projects/{design.project}/regions/{design.region}"
            return pulumi.Output.from_input(f"{place}/resourcePolicies/{partition.placement_policy}")
        if partition.placement != "cluster":
            return None
        policy = compute.ResourcePolicy(
            f"{self._name}-{partition.name}-policy",
            name=f"{design.name}-{partition.name}",
            description=f"nodes of partition {partition.name} close together, cluster {design.name}",
            project=design.project,
            region=design.region,
            # Without a number of machines: with one Google waits until so many are there.
            group_placement_policy=compute.ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return policy.self_link


def prefix(cluster: str, partition: str) -> str:
    """How the names of a partition's templates begin: at most LONGEST_PREFIX characters."""
    return f"{fitting(f'{cluster}-{partition}', LONGEST_PREFIX - 1)}-"


def scheduling(partition: Partition) -> dict[str, Any]:
    """What Google does with a node when it needs the machine: spot, and whether it can move elsewhere.

    A node is never started again behind Slurm's back: it would come back without its jobs.
    """
    placed = partition.placement == "cluster" or partition.placement_policy is not None
    stays = partition.spot or partition.accelerator is not None or placed
    found: dict[str, Any] = {
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE" if stays else "MIGRATE",
        "preemptible": partition.spot,
        "provisioning_model": "SPOT" if partition.spot else "STANDARD",
    }
    if partition.spot:
        # A stopped machine costs its disk, and its name could not be used again.
        found["instance_termination_action"] = "DELETE"
    return found


def _accelerators(
    partition: Partition,
) -> list[compute.InstanceTemplateGuestAcceleratorArgs] | None:
    """GPUs that are attached; a machine that always has some names none."""
    wanted = partition.accelerator
    gpu = catalog().attachable_to(partition.machine, wanted.type) if wanted else None
    if wanted is None or gpu is None:
        return None
    return [compute.InstanceTemplateGuestAcceleratorArgs(type=gpu.name, count=wanted.count)]


def _disks(
    partition: Partition, image: pulumi.Input[str], marks: dict[str, str]
) -> list[compute.InstanceTemplateDiskArgs]:
    root = compute.InstanceTemplateDiskArgs(
        boot=True,
        auto_delete=True,
        source_image=image,
        disk_size_gb=partition.disk_gib,
        disk_type=images.DISK_TYPE,
        labels=marks,
    )
    scratch = [
        compute.InstanceTemplateDiskArgs(
            type="SCRATCH",
            disk_type="local-ssd",
            disk_size_gb=LOCAL_SSD_GIB,
            interface="NVME",
            auto_delete=True,
        )
        for _ in range(partition.local_ssds)
    ]
    return [root, *scratch]


def _reservation(
    partition: Partition,
) -> compute.InstanceTemplateReservationAffinityArgs | None:
    """Reserved capacity and nothing else: where it is used up, no node starts beside it without a word."""
    if partition.reservation is None:
        return None
    return compute.InstanceTemplateReservationAffinityArgs(
        type="SPECIFIC_RESERVATION",
        specific_reservation=compute.InstanceTemplateReservationAffinitySpecificReservationArgs(
            key="compute.googleapis.com/reservation-name", values=[partition.reservation]
        ),
    )
