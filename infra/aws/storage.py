"""The cluster's storage on AWS: exported disks, EFS, FSx for Lustre, and the bucket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.addresses import labels
from infra.aws import policies
from infra.aws.network import AwsNetwork
from infra.aws.tags import tags
from infra.clouds.cluster import mount_sources
from infra.clouds.publishing import BucketObject
from node.design.model import STATE, ClusterDesign
from node.design.sites import MountSource
from node.design.storage import Gp3, Mount

LUSTRE_VERSION = "2.15"
"""The version of the servers. FSx recommends it, and the clients of Ubuntu 24.04 speak it."""
EVENTS = ("NEW", "CHANGED", "DELETED")
FILES_TAKE = "6h"
"""How long FSx or EBS may take where a bucket or a whole disk is read or written. The provider waits 10
minutes for an association and 30 for a file system, but a bucket of four million objects took over an hour
(aws-parallelcluster, issue 4211), and a final backup or snapshot copies all data."""
PATH_TAKES = "30m"
"""How long a mount target of EFS or the attachment of a volume may take to come or go. The provider waits 10
minutes for a target's end, and 5 for an attachment."""
LETTERS = "fghijklmnop"
"""The last letters of the devices /dev/sdf … /dev/sdp, which EC2 reserves for volumes."""
FIXED = ("/home", "/apps", STATE)
"""The directories whose letter does not depend on which others there are."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A folder in S3 that appears in a Lustre file system.

    Attributes:
        path: The path in the file system. `/` is all of it.
        source: The folder, as `s3://bucket/prefix`.
    """

    path: str
    source: str
    imports: bool
    exports: bool


class AwsStorage(pulumi.ComponentResource):
    """The disks and file systems that the design mounts. Everything is encrypted.

    Attributes:
        volumes: path -> the EBS volume's id, for directories that the controller exports.
        devices: path -> the device that the volume is attached as (`AwsDisks`).
        sources: path -> what a machine mounts there: `fs-….efs.REGION.amazonaws.com:/`,
            `fs-….fsx.REGION.amazonaws.com@tcp:/NAME`, or an NFS server's `server:/path`.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        network: AwsNetwork,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsStorage", name, None, opts)
        self._name = name
        self._design = design
        self._network = network
        self.volumes: dict[str, pulumi.Output[str]] = {}
        self.devices = devices(design)
        self.sources: dict[str, pulumi.Output[str]] = {}
        for mount in design.mounts:
            if mount.served_by == "controller":
                self.volumes[mount.path] = self._volume(mount)
            elif mount.kind == "nfs":
                self.sources[mount.path] = pulumi.Output.from_input(str(mount.existing))
            elif mount.kind == "efs":
                self.sources[mount.path] = self._efs(mount)
            elif mount.kind == "fsx_lustre":
                self.sources[mount.path] = self._lustre(mount)
        self.register_outputs({"volumes": self.volumes, "sources": self.sources})

    def mounts(self) -> pulumi.Output[dict[str, MountSource]]:
        """Return `Site.mounts`: path -> a service's address, or the controller's disk and its device."""
        served = {path: {"source": source} for path, source in self.sources.items()}
        disks = {
            path: {"disk": volume, "device": self.devices[path]} for path, volume in self.volumes.items()
        }
        return mount_sources({**served, **disks})

    def _volume(self, mount: Mount) -> pulumi.Output[str]:
        if mount.existing is not None:
            return pulumi.Output.from_input(mount.existing)
        gp3 = mount.gp3 or Gp3()
        volume = aws.ebs.Volume(
            f"{self._name}-{_part(mount)}",
            # A disk can be used only in its own zone.
            availability_zone=self._network.zones.head,
            size=mount.size_gib,
            type="gp3",
            iops=gp3.iops,
            throughput=gp3.throughput,
            encrypted=True,
            kms_key_id=self._design.aws.kms_key,
            snapshot_id=mount.restore,
            final_snapshot=True if mount.snapshot else None,
            tags=self._tags(mount),
            # A deletion waits for the last snapshot.
            opts=self._options(
                mount, ["snapshotId"], custom_timeouts=pulumi.CustomTimeouts(delete=FILES_TAKE)
            ),
        )
        return volume.id

    def _options(self, mount: Mount, once: list[str], **more: Any) -> pulumi.ResourceOptions:
        """Return the options of a disk or a file system.

        Args:
            once: The properties that count only when it is made.
        """
        return pulumi.ResourceOptions(
            parent=self, ignore_changes=once, retain_on_delete=mount.keep or None, **more
        )

    def _efs(self, mount: Mount) -> pulumi.Output[str]:
        resource = f"{self._name}-{_part(mount)}"
        system = self._efs_system(resource, mount)
        if mount.security_group is not None:
            # Its owner has made the mount targets.
            return system.dns_name.apply(lambda name: f"{name}:/")
        zones = self._network.zones
        # The file system's name resolves only in zones with a target. In an existing network the head may be
        # in another zone than the private subnets.
        subnets = {zones.head: self._network.public, **self._network.private}
        label = labels(list(subnets))
        targets = [
            aws.efs.MountTarget(
                f"{resource}-{label[zone]}",
                file_system_id=system.id,
                subnet_id=subnet,
                security_groups=[self._network.groups["storage"]],
                # EFS has one target in a zone, and all of them in one VPC.
                opts=pulumi.ResourceOptions(
                    parent=self,
                    delete_before_replace=True,
                    custom_timeouts=_takes(PATH_TAKES),
                ),
            )
            for zone, subnet in subnets.items()
        ]
        # A machine that mounts it needs the targets, so the source is known only when they exist.
        return pulumi.Output.all(system.dns_name, *(t.id for t in targets)).apply(
            lambda known: f"{known[0]}:/"
        )

    def _efs_system(self, resource: str, mount: Mount) -> aws.efs.FileSystem:
        if mount.existing is not None:
            return aws.efs.FileSystem.get(resource, mount.existing, opts=pulumi.ResourceOptions(parent=self))
        return aws.efs.FileSystem(
            resource,
            encrypted=True,
            # This mode costs by what is read and written, so a cluster that sleeps most of the week pays
            # little.
            throughput_mode="elastic",
            tags=self._tags(mount),
            opts=self._options(mount, []),
        )

    def _lustre(self, mount: Mount) -> pulumi.Output[str]:
        if mount.existing is not None:
            # Only FSx knows the name of the mount.
            file_system = aws.fsx.LustreFileSystem.get(
                f"{self._name}-{_part(mount)}", mount.existing, opts=pulumi.ResourceOptions(parent=self)
            )
            return pulumi.Output.all(file_system.dns_name, file_system.mount_name).apply(
                lambda known: f"{known[0]}@tcp:/{known[1]}"
            )
        resource, scratch_1 = f"{self._name}-{_part(mount)}", mount.deployment == "SCRATCH_1"
        linked = repositories(mount)
        file_system = aws.fsx.LustreFileSystem(
            resource,
            # A Lustre file system is in one zone. The head's zone is the one that most partitions use.
            subnet_ids=self._lustre_subnet(),
            storage_capacity=mount.size_gib,
            deployment_type=mount.deployment,
            storage_type=mount.storage_type,
            per_unit_storage_throughput=mount.throughput,
            drive_cache_type="NONE" if mount.storage_type == "HDD" else None,
            file_system_type_version=LUSTRE_VERSION,
            security_group_ids=[self._network.groups["storage"]],
            backup_id=mount.restore,
            skip_final_backup=not mount.snapshot,
            final_backup_tags=self._tags(mount) if mount.snapshot else None,
            import_path=mount.s3_import if scratch_1 else None,
            export_path=mount.s3_export if scratch_1 else None,
            auto_import_policy="NEW_CHANGED_DELETED" if scratch_1 and mount.s3_import else None,
            tags=self._tags(mount),
            opts=self._options(
                mount,
                # The zone is chosen once: in another zone it would be another, empty file system.
                ["subnetIds", "backupId"],
                # FSx checks the group first, and refuses one that does not let Lustre through.
                depends_on=self._network.rules["storage"],
                custom_timeouts=_takes(FILES_TAKE),
            ),
        )
        links: list[aws.fsx.DataRepositoryAssociation] = []
        for number, repository in enumerate(linked):
            # FSx refuses the second of two at once (terraform-provider-aws, issue 24678).
            links.append(self._link(resource, file_system, number, repository, mount, links[-1:]))
        return pulumi.Output.all(
            file_system.dns_name, file_system.mount_name, *(link.id for link in links)
        ).apply(lambda known: f"{known[0]}@tcp:/{known[1]}")

    def _lustre_subnet(self) -> pulumi.Output[str]:
        network = self._network
        first = (
            network.zones.head if network.zones.head in network.zones.compute else network.zones.compute[0]
        )
        return network.private[first]

    def _link(
        self,
        resource: str,
        system: aws.fsx.LustreFileSystem,
        number: int,
        repository: Repository,
        mount: Mount,
        after: Sequence[pulumi.Resource],
    ) -> aws.fsx.DataRepositoryAssociation:
        events = list(EVENTS)
        s3 = aws.fsx.DataRepositoryAssociationS3Args(
            auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=events)
            if repository.imports
            else None,
            auto_export_policy=aws.fsx.DataRepositoryAssociationS3AutoExportPolicyArgs(events=events)
            if repository.exports
            else None,
        )
        return aws.fsx.DataRepositoryAssociation(
            f"{resource}-s3-{number}",
            file_system_id=system.id,
            file_system_path=repository.path,
            data_repository_path=repository.source,
            batch_import_meta_data_on_create=repository.imports,
            s3=s3,
            tags=self._tags(mount),
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=list(after), custom_timeouts=_takes(FILES_TAKE)
            ),
        )

    def _tags(self, mount: Mount) -> dict[str, str]:
        stays = {"keep": mount.name} if mount.keep else {}
        more = {**stays, **({"snapshot": mount.name} if mount.snapshot else {})}
        return tags(self._design, f"{self._design.name}-{_part(mount)}", **more)


class AwsDisks(pulumi.ComponentResource):
    """The attachments of the volumes to the controller.

    Volumes outlive it and can move to its successor.

    Args:
        instance: The controller's instance id.
    """

    def __init__(
        self,
        name: str,
        storage: AwsStorage,
        instance: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsDisks", name, None, opts)
        for path, volume in storage.volumes.items():
            aws.ec2.VolumeAttachment(
                f"{name}-{path.strip('/').replace('/', '-')}",
                instance_id=instance,
                volume_id=volume,
                device_name=storage.devices[path],
                # A mounted volume cannot be detached, so the controller stops first and writes out its files.
                stop_instance_before_detaching=True,
                opts=pulumi.ResourceOptions(parent=self, custom_timeouts=_takes(PATH_TAKES)),
            )
        self.register_outputs({})


def devices(design: ClusterDesign) -> dict[str, str]:
    """Return the device of each volume that the controller exports, by its path."""
    paths = [mount.path for mount in design.mounts if mount.served_by == "controller"]
    order = [*FIXED, *(path for path in paths if path not in FIXED)]
    return {path: f"/dev/sd{LETTERS[order.index(path)]}" for path in paths}


def repositories(mount: Mount) -> list[Repository]:
    """Return the associations with S3 that a Lustre mount asks for.

    SCRATCH_1 has none: it has options of its own.

    One folder of S3 appears as the whole file system. Two different folders cannot both do so: objects of the
    first appear below `/import`, and what is written below `/export` goes to the second.
    """
    source, target = mount.s3_import, mount.s3_export
    if mount.deployment == "SCRATCH_1":
        return []
    if source and target and source.rstrip("/") != target.rstrip("/"):
        return [Repository("/import", source, True, False), Repository("/export", target, False, True)]
    folder = source or target
    return [Repository("/", folder, source is not None, target is not None)] if folder else []


def _takes(most: str) -> pulumi.CustomTimeouts:
    return pulumi.CustomTimeouts(create=most, update=most, delete=most)


def _part(mount: Mount) -> str:
    return mount.path.strip("/").replace("/", "-")


class AwsBucket(pulumi.ComponentResource):
    """A private, encrypted bucket that is reached over TLS only and deleted with all its content.

    Attributes:
        bucket: The bucket's name.
        arn: The bucket's ARN.
        closed: The resources that make the bucket private. Objects are made after them.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsBucket", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        # Versions stay off, as by default: all content can be made again, and old settings would stay for
        # ever.
        store = aws.s3.Bucket(
            f"{name}-store", force_destroy=True, tags=tags(design, f"{design.name}-bucket"), opts=child_opts
        )
        access = aws.s3.BucketPublicAccessBlock(
            f"{name}-public-access-block",
            bucket=store.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child_opts,
        )
        owner = aws.s3.BucketOwnershipControls(
            f"{name}-ownership",
            bucket=store.id,
            rule={"object_ownership": "BucketOwnerEnforced"},
            opts=child_opts,
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            f"{name}-encryption",
            bucket=store.id,
            rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}],
            opts=child_opts,
        )
        policy = aws.s3.BucketPolicy(
            f"{name}-policy",
            bucket=store.id,
            policy=store.arn.apply(lambda arn: json.dumps(policies.tls_only(arn))),
            # S3 refuses two changes of a bucket's access at once.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[access]),
        )
        self.bucket: pulumi.Output[str] = store.id
        self.arn: pulumi.Output[str] = store.arn
        self.closed: list[pulumi.Resource] = [access, owner, encryption, policy]
        self.register_outputs({"bucket": self.bucket})

    def put(self, name: str, item: BucketObject, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Declare an object, which is made after the bucket is closed."""
        return aws.s3.BucketObjectv2(
            name,
            bucket=self.bucket,
            key=item.key,
            content=item.content,
            source=item.source,
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=self.closed)),
        )
