"""What machines start from: their image, their metadata, and one instance template for each partition.

A template has all that the elastic driver does not say when it launches nodes. `infra.gcp.cluster` fills
`GcpRoleResources` from the other components, so that the head and the templates can be tested without them.
Whoever may list the machines can read their metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_gcp import compute

from infra import bundle
from infra.clouds.cluster import RoleResources
from infra.clouds.userdata import HOOK, BootScript
from infra.config import distributions
from infra.gcp.names import labels, shortened
from infra.instance_types.catalog import LOCAL_SSD_GIB, catalog
from node.bootstrap.vm.images import ROLE as IMAGE
from node.design.model import ClusterDesign, Image, Partition
from node.elastic.drivers.gce.names import BUCKET

ROOT_DISK_TYPE = "pd-balanced"
"""The type of root disks. It is on SSD, and N1, N2 and E2 all accept it."""
STARTUP = "startup-script"
"""The key of the script that Google's guest agent runs late in each boot. It never changes while a machine
lives."""
USER_DATA = "user-data"
"""The key of the script that cloud-init runs early. It never changes while a machine lives."""
BOOT_SCRIPT = BootScript(
    start=bundle.ROOT / "node" / "gcp" / "run_loader.py",
    # A value in the metadata has 256 KiB at most, and cloud-init's copy begins with `HOOK`.
    limit=256 * 1024 - len(HOOK),
    # cloud-init chooses the package mirrors, and the agent sets up OS Login: the boot goes on from there.
    # An image that lacks one of the two does not wait for it.
    after=("cloud-config.service", "google-guest-agent.service"),
)
"""The script of every machine. Google's guest agent runs it at each boot as the startup script. On Ubuntu
that is after multi-user.target and after snapd has seeded its snaps. cloud-init runs it earlier (`HOOK`).
Debian's images have no cloud-init."""
ALWAYS = {
    # The project's IAM defines the users, their ids and who may use sudo: the same on every machine.
    "enable-oslogin": "TRUE",
    # Otherwise everybody whose key is in the project's metadata could log in beside OS Login.
    "block-project-ssh-keys": "TRUE",
    "serial-port-enable": "FALSE",
}
OPEN_METADATA = {"slurm-stacks-open-metadata": "true"}
"""Says that every user of a node may ask the metadata address. The boot reads the settings instead. With this
a partition has another template, so that nodes which booted otherwise retire."""
STAYING = ("h4d-", "z3-highmem-176", "z3-standard-176")
"""The beginnings of machine types without devices that cannot move to another host while they run."""
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
"""The scopes restrict nothing here. The roles of its service account say what a machine may do."""
LONGEST_PREFIX = 37
"""The longest prefix of a template's name. The provider adds 26 characters that make the name unique."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpRoleResources(RoleResources):
    """The resources that the machines of a role share.

    Attributes:
        account: The service account's email address, by which the firewall's rules find the machines.
        subnetwork: The subnetwork's self link.
    """

    account: pulumi.Input[str]
    subnetwork: pulumi.Input[str]


ResourcesByRole = Mapping[str, GcpRoleResources]
"""controller | login | compute | image -> its resources."""


def image_id(image: Image, opts: pulumi.InvokeOptions | None = None) -> pulumi.Input[str]:
    """Return the cluster's image, or the image from which baked images are built.

    The family is resolved to one image at each `up`. New nodes get the newest image, all nodes of one launch
    get the same image, and the head ignores the change.
    """
    if image.id is not None:
        return image.id
    row = distributions.of(image.source).google
    return compute.get_image_output(project=row.project, family=row.family, opts=opts).self_link


def metadata(
    design: ClusterDesign, resources: GcpRoleResources, role: str, host: str | None = None
) -> dict[str, pulumi.Input[str]]:
    """Return the metadata of a machine.

    Args:
        role: controller | login | compute | image.
        host: The machine's name in the design. `None` means that the machine finds it by its instance's name.
    """
    bucket = pulumi.Output.from_input(resources.bucket)
    script = bucket.apply(lambda name: BOOT_SCRIPT.render(design, name, role, host))
    # On a node this would change its template, and nobody asks for a node's bucket.
    named: dict[str, pulumi.Input[str]] = {BUCKET: bucket} if host is not None else {}
    scripts: dict[str, pulumi.Input[str]] = {}
    cloud_init = distributions.of(design.image.source).google.cloud_init
    if cloud_init:
        scripts[USER_DATA] = script.apply(HOOK.__add__)
    if role != IMAGE or not cloud_init:
        # Where cloud-init has run the other key on a machine that becomes an image, this script would run
        # late, and make the unit again after cleanup.
        scripts[STARTUP] = script
    return {**ALWAYS, **named, **scripts}


class GcpInstanceTemplates(pulumi.ComponentResource):
    """The instance templates of nodes. The nodes themselves are not resources of the stack.

    A template names neither zone nor host: the driver says both. It is global, because `instances.bulkInsert`
    accepts no regional templates (its reference shows only global ones, and gcloud's bulk command accepts no
    others). A template cannot change, only be replaced by one of another name. The driver sees by the name
    which nodes have an older template. Google encrypts disks with keys that it manages, as it does
    everything.

    Attributes:
        templates: partition -> the self link of its instance template.

    Args:
        resources: The resources of compute machines.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources: GcpRoleResources,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpInstanceTemplates", name, None, opts)
        self._name = name
        self._design = design
        self._metadata = metadata(design, resources, "compute")
        self.templates: dict[str, pulumi.Output[str]] = {
            partition.name: self._template(partition, resources).self_link for partition in design.partitions
        }
        self.register_outputs({"templates": self.templates})

    def _template(self, partition: Partition, resources: GcpRoleResources) -> compute.InstanceTemplate:
        design = self._design
        own_labels = labels(design, role="compute", partition=partition.name)
        what = f"node of partition {partition.label}, cluster {design.name}"
        overrides = partition.overrides()
        if partition.threads_per_core is not None:
            ours = {"threads_per_core": partition.threads_per_core}
            overrides["advanced_machine_features"] = {
                **ours,
                **overrides.get("advanced_machine_features", {}),
            }
        network: dict[str, Any] = next(iter(overrides.pop("network_interfaces", [])), {})
        more_metadata = overrides.pop("metadata", {})
        return compute.InstanceTemplate(
            f"{self._name}-{partition.name}",
            name_prefix=prefix(design.name, partition.name),
            description=f"template of a {what}",
            instance_description=what,
            project=design.project,
            machine_type=partition.instance_type,
            min_cpu_platform=partition.gcp.min_cpu_platform,
            guest_accelerators=_accelerators(partition),
            disks=_disks(partition, resources.start_from(partition.name, partition.image), own_labels),
            network_interfaces=[
                # Without an access configuration a node has no public address.
                compute.InstanceTemplateNetworkInterfaceArgs(subnetwork=resources.subnetwork, **network)
            ],
            tags=list(partition.gcp.network_tags) or None,
            scheduling=compute.InstanceTemplateSchedulingArgs(
                **scheduling(partition), **overrides.pop("scheduling", {})
            ),
            resource_policies=self._placement(partition),
            reservation_affinity=_reservation(partition),
            service_account=compute.InstanceTemplateServiceAccountArgs(
                email=resources.account, scopes=SCOPES
            ),
            shielded_instance_config=compute.InstanceTemplateShieldedInstanceConfigArgs(
                **{
                    "enable_vtpm": True,
                    "enable_integrity_monitoring": True,
                    "enable_secure_boot": partition.gcp.secure_boot,
                    **overrides.pop("shielded_instance_config", {}),
                }
            ),
            metadata={
                **more_metadata,
                **self._metadata,
                **(OPEN_METADATA if partition.open_metadata else {}),
            },
            labels=own_labels,
            **overrides,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _placement(self, partition: Partition) -> pulumi.Output[str] | None:
        """Return the compact policy of a partition whose nodes are close together, in one zone.

        It is the partition's own, or the one that its reservation was made with, which is not the cluster's:
        a reservation accepts no other. That one is in the reservation's project.
        """
        design = self._design
        if partition.gcp.placement_policy is not None:
            shared = re.fullmatch(r"projects/([^/]+)/.*", partition.reservation or "")
            owner = shared[1] if shared else design.project
            place = f"projects/{owner}/regions/{design.region}"
            return pulumi.Output.from_input(f"{place}/resourcePolicies/{partition.gcp.placement_policy}")
        if partition.placement != "cluster":
            return None
        policy = compute.ResourcePolicy(
            f"{self._name}-{partition.name}-policy",
            name=f"{design.name}-{partition.name}",
            description=f"nodes of partition {partition.label} close together, cluster {design.name}",
            project=design.project,
            region=design.region,
            # No number of machines is given. With a number Google would wait until so many exist.
            group_placement_policy=compute.ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return policy.self_link


def prefix(cluster: str, partition: str) -> str:
    """Return the prefix of the names of a partition's templates, of at most LONGEST_PREFIX characters."""
    return f"{shortened(f'{cluster}-{partition}', LONGEST_PREFIX - 1)}-"


def migrates(machine_type: str) -> bool:
    """Return whether a machine of this type can move to another host while it runs.

    Google's page on host maintenance policies lists what can only stop
    (docs.cloud.google.com/compute/docs/instances/setting-vm-host-options#limitations): H4D, bare metal, Z3
    with the largest disks, and machines with GPUs or TPUs.
    """
    facts = catalog().instance_type(machine_type)
    if facts is not None and facts.accelerator is not None:
        return False
    return not machine_type.startswith(STAYING) and not machine_type.endswith("-metal")


def scheduling(partition: Partition) -> dict[str, Any]:
    """Return what Google does with a node when it needs the machine.

    That is whether the node is spot, and whether it can move.

    Google never starts a node again by itself: the node would come back without its jobs.
    """
    placed = partition.placement == "cluster" or partition.gcp.placement_policy is not None
    stays = partition.spot or partition.accelerator is not None or placed
    stays = stays or not migrates(partition.instance_type)
    # Of Confidential VMs only N2D on Milan with SEV can move, and nobody knows which processors a node gets
    # (docs.cloud.google.com/confidential-computing/confidential-vm/docs/supported-configurations).
    stays = stays or "confidential_instance_config" in partition.overrides()
    options: dict[str, Any] = {
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE" if stays else "MIGRATE",
        "preemptible": partition.spot,
        "provisioning_model": "SPOT" if partition.spot else "STANDARD",
    }
    if partition.spot:
        # A stopped machine would cost its disk, and its name could not be used again.
        options["instance_termination_action"] = "DELETE"
    return options


def _accelerators(
    partition: Partition,
) -> list[compute.InstanceTemplateGuestAcceleratorArgs] | None:
    """Return the GPUs that are attached to a machine. A machine type with built-in GPUs names none."""
    wanted = partition.accelerator
    gpu = catalog().attachable_to(partition.instance_type, wanted.type) if wanted else None
    if wanted is None or gpu is None:
        return None
    return [compute.InstanceTemplateGuestAcceleratorArgs(type=gpu.name, count=wanted.count)]


def _disks(
    partition: Partition, image: pulumi.Input[str], own_labels: dict[str, str]
) -> list[compute.InstanceTemplateDiskArgs]:
    root = compute.InstanceTemplateDiskArgs(
        boot=True,
        auto_delete=True,
        source_image=image,
        disk_size_gb=partition.disk_gib,
        disk_type=partition.gcp.disk_type or ROOT_DISK_TYPE,
        labels=own_labels,
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
    """Limit a partition to its reserved capacity.

    Once that is used up, no node starts outside it unnoticed.
    """
    if partition.reservation is None:
        return None
    return compute.InstanceTemplateReservationAffinityArgs(
        type="SPECIFIC_RESERVATION",
        specific_reservation=compute.InstanceTemplateReservationAffinitySpecificReservationArgs(
            key="compute.googleapis.com/reservation-name", values=[partition.reservation]
        ),
    )
