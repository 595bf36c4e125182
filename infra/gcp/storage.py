"""The cluster's storage on Google Cloud: exported disks, Filestore, and the bucket."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi_gcp import compute, filestore, storage

from infra.clouds.cluster import mount_sources
from infra.clouds.firewall import roles
from infra.clouds.publishing import BucketObject
from infra.gcp.names import account_email, labels
from infra.gcp.network import GcpNetwork
from node.design.model import ClusterDesign
from node.design.sites import MountSource
from node.design.storage import Mount
from node.elastic.drivers.gce.names import resource_of

DISK_TYPE = "pd-balanced"
DISK_TAKES = pulumi.CustomTimeouts(create="6h", delete="6h")
"""How long a disk may take that is made from a snapshot, or whose deletion waits for its last snapshot. The
provider waits 20 minutes."""
REGIONAL = ("REGIONAL", "ENTERPRISE")
"""The tiers of Filestore that belong to a region. Other tiers belong to a zone."""
LONGEST = 63
"""Characters of a name."""
BY_ID = "/dev/disk/by-id/google-"
"""The beginning of the path under which Linux shows a disk by the name that it has on its machine."""


class GcpStorage(pulumi.ComponentResource):
    """The disks and file systems that the design mounts. Google encrypts everything.

    Attributes:
        disks: path -> the self link of the persistent disk, for directories that the controller exports.
        sources: path -> what a machine mounts there: `10.1.2.3:/home`, or an NFS server's `server:/path`.
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
            if mount.served_by == "controller":
                self.disks[mount.path] = self._disk(mount)
            elif mount.kind == "nfs":
                self.sources[mount.path] = pulumi.Output.from_input(str(mount.existing))
            elif mount.kind == "filestore":
                self.sources[mount.path] = self._filestore(mount)
        self.register_outputs({"disks": self.disks, "sources": self.sources})

    def attached(self) -> list[compute.InstanceAttachedDiskArgs]:
        """Return the disks in the form that the controller's instance takes."""
        return [
            compute.InstanceAttachedDiskArgs(source=disk, device_name=device(path), mode="READ_WRITE")
            for path, disk in self.disks.items()
        ]

    def mounts(self) -> pulumi.Output[dict[str, MountSource]]:
        """Return `Site.mounts`: path -> a service's address, or the controller's disk and its device."""
        served = {path: {"source": source} for path, source in self.sources.items()}
        disks = {
            path: {"disk": disk, "device": f"{BY_ID}{device(path)}"} for path, disk in self.disks.items()
        }
        return mount_sources({**served, **disks})

    def _disk(self, mount: Mount) -> pulumi.Output[str]:
        design = self._design
        if mount.existing is not None:
            return pulumi.Output.from_input(
                f"projects/{design.project}/zones/{design.zone}/disks/{mount.existing}"
            )
        name = resource_of(design.name, mount.path)
        disk = compute.Disk(
            f"{self._name}-{_part(design, mount)}",
            name=name,
            description=f"{mount.path} of the cluster {design.name}",
            project=design.project,
            # A disk can be used only in its own zone.
            zone=design.zone,
            size=mount.size_gib,
            type=DISK_TYPE,
            snapshot=mount.restore,
            create_snapshot_before_destroy=True if mount.snapshot else None,
            create_snapshot_before_destroy_prefix=snapshot_prefix(name) if mount.snapshot else None,
            labels=self._labels(mount),
            opts=self._options(mount, ["snapshot"], custom_timeouts=DISK_TAKES),
        )
        return disk.self_link

    def _options(self, mount: Mount, ignored: list[str], **more: Any) -> pulumi.ResourceOptions:
        """Return the options of a disk or an instance.

        Args:
            ignored: The properties that count only when it is made: a later change of them is ignored.
        """
        return pulumi.ResourceOptions(
            parent=self,
            delete_before_replace=True,
            ignore_changes=ignored,
            retain_on_delete=mount.keep or None,
            **more,
        )

    def _labels(self, mount: Mount) -> dict[str, str]:
        return labels(self._design, **({"keep": mount.name} if mount.keep else {}))

    def _filestore(self, mount: Mount) -> pulumi.Output[str]:
        if mount.existing is not None:
            return self._existing_filestore(mount)
        design, part = self._design, _part(self._design, mount)
        instance = filestore.Instance(
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
            labels=self._labels(mount),
            opts=self._options(mount, []),
        )
        unknown = f"<{self._name}-{part}.networks[0].ipAddresses[0]>"
        address: pulumi.Output[str] = instance.networks.apply(
            # An offline plan has not even a placeholder for the computed parts of an input.
            lambda found: str((found[0].ip_addresses or [unknown])[0])
        )
        self._locks(mount, address)
        return address.apply(lambda ip: f"{ip}:/{share(mount.path)}")

    def _existing_filestore(self, mount: Mount) -> pulumi.Output[str]:
        *place, name = str(mount.existing).split("/")
        instance = filestore.get_instance_output(
            name=name,
            project=place[1] if place else self._design.project,
            location=place[3] if place else self._design.zone,
            opts=pulumi.InvokeOptions(parent=self),
        )
        address: pulumi.Output[str] = instance.networks.apply(
            lambda networks: str((networks[0].ip_addresses or [f"<{name}.networks[0].ipAddresses[0]>"])[0])
        )
        exported = instance.file_shares.apply(lambda shares: str(shares[0].name))
        self._locks(mount, address)
        return pulumi.Output.format("{0}:/{1}", address, exported)

    def _locks(self, mount: Mount, address: pulumi.Output[str]) -> None:
        """Admit the locks of NFS 3, which the server grants by calls to ports that the client chooses."""
        design = self._design
        compute.Firewall(
            f"{self._name}-{_part(design, mount)}-locks",
            name=resource_of(design.name, mount.path, "-locks"),
            description=f"Filestore's locks of {mount.path}, cluster {design.name}",
            project=design.project,
            network=self._network.network,
            direction="INGRESS",
            source_ranges=[address.apply(lambda ip: f"{ip}/32")],
            target_service_accounts=[account_email(design, role) for role in roles(design)],
            allows=[{"protocol": "tcp"}, {"protocol": "udp"}],
            opts=pulumi.ResourceOptions(parent=self),
        )


def device(path: str) -> str:
    """Return the name of an exported directory's disk on the controller: `slurm-stacks-home` of /home."""
    return resource_of("slurm-stacks", path)


def snapshot_prefix(disk: str) -> str:
    """Return the beginning of the name of a disk's last snapshot.

    The provider adds `-YYYYMMDD-HHMMSS` to it.
    """
    return disk[: LONGEST - len("-20060102-150405")].rstrip("-")


def share(path: str) -> str:
    """Return the name of a Filestore share.

    It has at most 16 letters, digits and underscores, with a letter first.
    """
    letters = "".join(c if c.isalnum() else "_" for c in path.strip("/").lower())
    return (letters if letters[0].isalpha() else f"s{letters}")[:16]


def _part(design: ClusterDesign, mount: Mount) -> str:
    """Return the mount's part of a resource's name: what follows the name of the cluster."""
    return resource_of(design.name, mount.path).removeprefix(f"{design.name}-")


class GcpBucket(pulumi.ComponentResource):
    """A private bucket in the cluster's region that is deleted with all its content.

    Cloud Storage encrypts everything and answers over TLS only.

    Attributes:
        bucket: The bucket's name.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpBucket", name, None, opts)
        store = storage.Bucket(
            f"{name}-store",
            project=design.project,
            location=str(design.region).upper(),
            force_destroy=True,
            # Only IAM says who may do what, and it never allows everybody.
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            # All content can be made again. By default deleted objects are kept, and cost, for a week.
            versioning={"enabled": False},
            soft_delete_policy={"retention_duration_seconds": 0},
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.bucket: pulumi.Output[str] = store.name
        self.register_outputs({"bucket": self.bucket})

    def put(self, name: str, item: BucketObject, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Declare an object."""
        return storage.BucketObject(
            name, bucket=self.bucket, name=item.key, content=item.content, source=item.source, opts=opts
        )
