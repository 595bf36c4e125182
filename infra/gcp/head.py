"""The machines that live as long as their cluster: the controller, and login machines if the design has
any."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_gcp import compute

from infra.clouds.termination import behind
from infra.gcp import images
from infra.gcp.addresses import GcpAddresses
from infra.gcp.labels import labels
from infra.gcp.metadata import SCOPES, STARTUP, USER_DATA, metadata
from infra.gcp.role_resources import ResourcesByRole, RoleResources
from node.elastic.drivers.gce.names import instance_of
from node.model import ClusterDesign, Host

# Neither may restart a head with jobs. A new image is an explicit act (`pulumi up --replace` of its disk).
IGNORED = [f'metadata["{STARTUP}"]', f'metadata["{USER_DATA}"]']


class GcpHead(pulumi.ComponentResource):
    """The Compute Engine instances of the design's hosts, at their addresses.

    Google encrypts all disks with keys that it manages, as it does everything on Google Cloud.

    Attributes:
        machines: host -> its instance.
        disks: host -> its root disk. The controller's holds Slurm's queue.

    Args:
        exports: The disks that the controller exports.
        termination: What ends the nodes. It outlives the machines, also when it is replaced with its network.
        after: What a machine needs at its boot, and what must outlive it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        addresses: GcpAddresses,
        exports: Sequence[compute.InstanceAttachedDiskArgs],
        termination: pulumi.Resource,
        after: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpHead", name, None, opts)
        self._name = name
        self._design = design
        self._termination = termination
        self.machines: dict[str, compute.Instance] = {}
        self.disks: dict[str, compute.Disk] = {}
        for host in design.hosts:
            # A login machine mounts what the controller exports, and is deleted before it.
            first = [self.machines["controller"]] if host.role == "login" else []
            attached = exports if host.role == "controller" else []
            self.machines[host.name] = self._machine(
                host, resources_by_role[host.role], addresses, attached, [termination, *after, *first]
            )
        self.register_outputs({"machines": {host: made.name for host, made in self.machines.items()}})

    def _machine(
        self,
        host: Host,
        resources: RoleResources,
        addresses: GcpAddresses,
        attached: Sequence[compute.InstanceAttachedDiskArgs],
        after: list[pulumi.Resource],
    ) -> compute.Instance:
        design = self._design
        own_labels = labels(design, role=host.role, host=host.name)
        root = self.disks[host.name] = self._disk(host, resources, own_labels, after)
        return compute.Instance(
            f"{self._name}-{host.name}",
            name=instance_of(design.name, host.name),
            description=f"{host.name} of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            machine_type=host.instance_type,
            boot_disk=compute.InstanceBootDiskArgs(
                source=behind(self._termination, root.self_link), auto_delete=False
            ),
            attached_disks=attached or None,
            network_interfaces=[
                compute.InstanceNetworkInterfaceArgs(
                    subnetwork=resources.subnetwork,
                    network_ip=addresses.private[host.name],
                    access_configs=[
                        compute.InstanceNetworkInterfaceAccessConfigArgs(nat_ip=addresses.public[host.name])
                    ]
                    if host.name in addresses.public
                    else None,
                )
            ],
            service_account=compute.InstanceServiceAccountArgs(email=resources.account, scopes=SCOPES),
            scheduling=compute.InstanceSchedulingArgs(on_host_maintenance="MIGRATE", automatic_restart=True),
            shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
                enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=False
            ),
            metadata=metadata(design, resources, host.role, host.name),
            labels=own_labels,
            # Another machine type stops the machine for a while and does not replace it.
            allow_stopping_for_update=True,
            deletion_protection=False,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=IGNORED,
                # An address has one machine at a time, and so has a name.
                delete_before_replace=True,
            ),
        )

    def _disk(
        self, host: Host, resources: RoleResources, own_labels: dict[str, str], after: list[pulumi.Resource]
    ) -> compute.Disk:
        """A root disk apart from its machine, so that it can grow and the queue on it outlives the
        machine."""
        design = self._design
        return compute.Disk(
            f"{self._name}-{host.name}-disk",
            name=f"{design.name}-{host.name}",
            description=f"root disk of {host.name} of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            image=resources.start_from(host.name, host.image),
            size=host.disk_gib,
            type=images.DISK_TYPE,
            labels=own_labels,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=after, ignore_changes=["image"], delete_before_replace=True
            ),
        )
