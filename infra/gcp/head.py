"""The machines that live as long as their cluster: the controller, and login machines if there are any."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_gcp import compute

from infra.gcp import images
from infra.gcp.labels import labels
from infra.gcp.metadata import SCOPES, STARTUP, USER_DATA, metadata
from infra.gcp.parts import Station, Stations
from infra.gcp.seats import GcpSeats
from infra.node.elastic.drivers.gce_names import instance_of
from infra.node.model import ClusterDesign, Host

# Neither may restart a head with jobs; a new image is an explicit act (`pulumi up --replace` of its disk).
IGNORED = [f'metadata["{STARTUP}"]', f'metadata["{USER_DATA}"]']


class GcpHead(pulumi.ComponentResource):
    """Compute Engine instances of the design's hosts, in their seats. All disks are encrypted, with keys that
    Google manages, as everything on Google Cloud is.

    Attributes:
        machines: host -> its instance.
        disks: host -> its root disk; the controller's has the queue.

    Args:
        exports: disks that the controller exports.
        after: what a machine needs at its boot, and what must outlive it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        stations: Stations,
        seats: GcpSeats,
        exports: Sequence[compute.InstanceAttachedDiskArgs],
        after: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpHead", name, None, opts)
        self._name = name
        self._design = design
        self.machines: dict[str, compute.Instance] = {}
        self.disks: dict[str, compute.Disk] = {}
        for host in design.hosts:
            # Login machines find the controller's exports, and go before it.
            first = [self.machines["controller"]] if host.role == "login" else []
            attached = exports if host.role == "controller" else []
            self.machines[host.name] = self._machine(
                host, stations[host.role], seats, attached, [*after, *first]
            )
        self.register_outputs({"machines": {host: made.name for host, made in self.machines.items()}})

    def _machine(
        self,
        host: Host,
        station: Station,
        seats: GcpSeats,
        attached: Sequence[compute.InstanceAttachedDiskArgs],
        after: list[pulumi.Resource],
    ) -> compute.Instance:
        design = self._design
        marks = labels(design, role=host.role, host=host.name)
        root = self.disks[host.name] = self._disk(host, station, marks, after)
        return compute.Instance(
            f"{self._name}-{host.name}",
            name=instance_of(design.name, host.name),
            description=f"{host.name} of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            machine_type=host.machine,
            boot_disk=compute.InstanceBootDiskArgs(source=root.self_link, auto_delete=False),
            attached_disks=attached or None,
            network_interfaces=[
                compute.InstanceNetworkInterfaceArgs(
                    subnetwork=station.subnetwork,
                    network_ip=seats.private[host.name],
                    access_configs=[
                        compute.InstanceNetworkInterfaceAccessConfigArgs(nat_ip=seats.public[host.name])
                    ]
                    if host.name in seats.public
                    else None,
                )
            ],
            service_account=compute.InstanceServiceAccountArgs(email=station.account, scopes=SCOPES),
            scheduling=compute.InstanceSchedulingArgs(on_host_maintenance="MIGRATE", automatic_restart=True),
            shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
                enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=False
            ),
            metadata=metadata(design, station, host.role, host.name),
            labels=marks,
            # Another machine type is a pause, and not a new machine.
            allow_stopping_for_update=True,
            deletion_protection=False,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=IGNORED,
                # A seat has one machine at a time, and so has a name.
                delete_before_replace=True,
            ),
        )

    def _disk(
        self, host: Host, station: Station, marks: dict[str, str], after: list[pulumi.Resource]
    ) -> compute.Disk:
        """A root disk apart from its machine: so it can grow, and the queue on it outlives the machine."""
        design = self._design
        return compute.Disk(
            f"{self._name}-{host.name}-disk",
            name=f"{design.name}-{host.name}",
            description=f"root disk of {host.name} of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            image=station.start_from(host.name, host.image),
            size=host.disk_gib,
            type=images.DISK_TYPE,
            labels=marks,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=after, ignore_changes=["image"], delete_before_replace=True
            ),
        )
