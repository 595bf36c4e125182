"""The cluster's directories on Google Cloud: disks that the controller exports, and Filestore."""

from __future__ import annotations

import json

import pulumi
from pulumi_gcp import compute, filestore

from infra.clouds.reach import roles
from infra.gcp import service_accounts
from infra.gcp.labels import labels
from infra.gcp.network import GcpNetwork
from infra.node.elastic.drivers.gce_names import resource_of
from infra.node.model import ClusterDesign, Mount

DISK_TYPE = "pd-balanced"
REGIONAL = ("REGIONAL", "ENTERPRISE")
"""Tiers of Filestore that are a region's; the others are a zone's."""
BY_ID = "/dev/disk/by-id/google-"
"""Where Linux shows a disk by the name that it has on its machine."""


class GcpStorage(pulumi.ComponentResource):
    """What the design mounts, as far as it is not in the machines themselves. Google encrypts all of it.

    Attributes:
        disks: path -> the persistent disk's self link, for directories that the controller exports.
        sources: path -> what a machine mounts there: `10.1.2.3:/home`.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        network: GcpNetwork,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpStorage", name, None, opts)
        self._name = name
        self._design = design
        self._network = network
        self.disks: dict[str, pulumi.Output[str]] = {}
        self.sources: dict[str, pulumi.Output[str]] = {}
        for mount in design.mounts:
            if mount.kind == "nfs":
                self.disks[mount.path] = self._disk(mount)
            elif mount.kind == "filestore":
                self.sources[mount.path] = self._filestore(mount)
        self.register_outputs({"disks": self.disks, "sources": self.sources})

    def attached(self) -> list[compute.InstanceAttachedDiskArgs]:
        """The disks as the controller's instance takes them."""
        return [
            compute.InstanceAttachedDiskArgs(source=disk, device_name=device(path), mode="READ_WRITE")
            for path, disk in self.disks.items()
        ]

    def site(self) -> dict[str, pulumi.Output[str]]:
        """What goes into `Site.driver`: `mounts`, a JSON object of path -> `{"source": …}`, or
        `{"disk": its self link, "device": …}` for what the controller exports."""
        served = {path: {"source": source} for path, source in self.sources.items()}
        disks = {
            path: {"disk": disk, "device": f"{BY_ID}{device(path)}"} for path, disk in self.disks.items()
        }
        known = pulumi.Output.from_input({**served, **disks})
        return {"mounts": known.apply(lambda value: json.dumps(value, sort_keys=True))}

    def _disk(self, mount: Mount) -> pulumi.Output[str]:
        design = self._design
        made = compute.Disk(
            f"{self._name}-{_part(design, mount)}",
            name=resource_of(design.name, mount.path),
            description=f"{mount.path} of the cluster {design.name}",
            project=design.project,
            # A disk can be used in its own zone only.
            zone=design.zone,
            size=mount.size_gib,
            type=DISK_TYPE,
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        return made.self_link

    def _filestore(self, mount: Mount) -> pulumi.Output[str]:
        design, part = self._design, _part(self._design, mount)
        own = pulumi.ResourceOptions(parent=self)
        made = filestore.Instance(
            f"{self._name}-{part}",
            name=resource_of(design.name, mount.path),
            description=f"{mount.path} of the cluster {design.name}",
            project=design.project,
            location=str(design.region if mount.deployment in REGIONAL else design.zone),
            tier=str(mount.deployment),
            file_shares=filestore.InstanceFileSharesArgs(
                name=share(mount.path), capacity_gb=mount.size_gib or 0
            ),
            networks=[filestore.InstanceNetworkArgs(network=self._network.name, modes=["MODE_IPV4"])],
            deletion_protection_enabled=False,
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        unknown = f"<{self._name}-{part}.networks[0].ipAddresses[0]>"
        address: pulumi.Output[str] = made.networks.apply(
            # An offline plan has nothing, not even a placeholder, of the computed parts of an input.
            lambda found: str((found[0].ip_addresses or [unknown])[0])
        )
        # With NFS 3 locks are handed over by calls from the server, at ports that the client chooses.
        compute.Firewall(
            f"{self._name}-{part}-locks",
            name=resource_of(design.name, mount.path, "-locks"),
            description=f"Filestore's locks of {mount.path}, cluster {design.name}",
            project=design.project,
            network=self._network.network,
            direction="INGRESS",
            source_ranges=[address.apply(lambda ip: f"{ip}/32")],
            target_service_accounts=[service_accounts.email(design, role) for role in roles(design)],
            allows=[{"protocol": "tcp"}, {"protocol": "udp"}],
            opts=own,
        )
        return address.apply(lambda ip: f"{ip}:/{share(mount.path)}")


def device(path: str) -> str:
    """The name of an exported directory's disk on the controller: `slurm-stacks-home` of /home."""
    return resource_of("slurm-stacks", path)


def share(path: str) -> str:
    """The name of a Filestore share: at most 16 letters, digits and underscores, a letter first."""
    letters = "".join(c if c.isalnum() else "_" for c in path.strip("/").lower())
    return (letters if letters[0].isalpha() else f"s{letters}")[:16]


def _part(design: ClusterDesign, mount: Mount) -> str:
    """The name by which the stack knows what is mounted: what is behind the cluster's in the resource's."""
    return resource_of(design.name, mount.path).removeprefix(f"{design.name}-")
