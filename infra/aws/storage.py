"""The cluster's directories on AWS: disks that the controller exports, EFS, and FSx for Lustre."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.aws.network import AwsNetwork
from infra.aws.tags import tags
from infra.aws.zones import labels
from infra.errors import UserError
from infra.node.model import ClusterDesign, Mount

LUSTRE_VERSION = "2.15"
"""Of the servers: what FSx recommends, and what the clients of Ubuntu 24.04 speak."""
EVENTS = ("NEW", "CHANGED", "DELETED")
LETTERS = "fghijklmnop"
"""Of the devices /dev/sdf … /dev/sdp, which EC2 keeps for volumes."""
FIXED = ("/home", "/apps")
"""Directories whose letter does not depend on which others there are."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A folder of S3's that a part of a Lustre file system shows.

    Attributes:
        path: in the file system; `/` is all of it.
        source: `s3://bucket/prefix`.
    """

    path: str
    source: str
    imports: bool
    exports: bool


class AwsStorage(pulumi.ComponentResource):
    """What the design mounts, as far as it is not in the machines themselves. Everything is encrypted.

    Attributes:
        volumes: path -> the EBS volume's id, for directories that the controller exports.
        devices: path -> as which device the volume is attached (`AwsDisks`).
        sources: path -> what a machine mounts there: `fs-….efs.REGION.amazonaws.com:/`, or
            `fs-….fsx.REGION.amazonaws.com@tcp:/NAME`.
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
            if mount.kind == "nfs":
                self.volumes[mount.path] = self._volume(mount)
            elif mount.kind == "efs":
                self.sources[mount.path] = self._efs(mount)
            elif mount.kind == "fsx_lustre":
                self.sources[mount.path] = self._lustre(mount)
        self.register_outputs({"volumes": self.volumes, "sources": self.sources})

    def site(self) -> dict[str, pulumi.Output[str]]:
        """What goes into `Site.driver`: `mounts`, a JSON object of path -> `{"source": …}`, or
        `{"volume": its id, "device": …}` for what the controller exports."""
        served = {path: {"source": source} for path, source in self.sources.items()}
        disks = {
            path: {"volume": volume, "device": self.devices[path]} for path, volume in self.volumes.items()
        }
        known = pulumi.Output.from_input({**served, **disks})
        return {"mounts": known.apply(lambda value: json.dumps(value, sort_keys=True))}

    def _volume(self, mount: Mount) -> pulumi.Output[str]:
        made = aws.ebs.Volume(
            f"{self._name}-{_part(mount)}",
            # A disk can be used in its own zone only.
            availability_zone=self._network.zones.head,
            size=mount.size_gib,
            type="gp3",
            encrypted=True,
            kms_key_id=self._design.kms_key,
            tags=self._tags(mount),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return made.id

    def _efs(self, mount: Mount) -> pulumi.Output[str]:
        own = f"{self._name}-{_part(mount)}"
        made = aws.efs.FileSystem(
            own,
            encrypted=True,
            # Paid by what is read and written: a cluster that sleeps most of the week reserves nothing.
            throughput_mode="elastic",
            tags=self._tags(mount),
            opts=pulumi.ResourceOptions(parent=self),
        )
        zones = self._network.zones
        # The name has an address only in zones with a target: an existing network's head may be in another.
        subnets = {zones.head: self._network.public, **self._network.private}
        targets = [
            aws.efs.MountTarget(
                f"{own}-{label}",
                file_system_id=made.id,
                subnet_id=subnet,
                security_groups=[self._network.groups["storage"]],
                opts=pulumi.ResourceOptions(parent=self),
            )
            for label, subnet in zip(labels(list(subnets)), subnets.values(), strict=True)
        ]
        # Who mounts it needs the targets, so the source is known only when they are there.
        return pulumi.Output.all(made.dns_name, *(t.id for t in targets)).apply(lambda known: f"{known[0]}:/")

    def _lustre(self, mount: Mount) -> pulumi.Output[str]:
        own, scratch_1 = f"{self._name}-{_part(mount)}", mount.deployment == "SCRATCH_1"
        linked = repositories(mount)
        made = aws.fsx.LustreFileSystem(
            own,
            # It is in one zone: that of the head, which is the one that fits most partitions.
            subnet_ids=self._lustre_subnet(),
            storage_capacity=mount.size_gib,
            deployment_type=mount.deployment,
            storage_type=mount.storage_type,
            per_unit_storage_throughput=mount.throughput,
            drive_cache_type="NONE" if mount.storage_type == "HDD" else None,
            file_system_type_version=LUSTRE_VERSION,
            security_group_ids=[self._network.groups["storage"]],
            skip_final_backup=True,
            import_path=mount.s3_import if scratch_1 else None,
            export_path=mount.s3_export if scratch_1 else None,
            auto_import_policy="NEW_CHANGED_DELETED" if scratch_1 and mount.s3_import else None,
            tags=self._tags(mount),
            opts=pulumi.ResourceOptions(
                parent=self,
                # FSx looks at the group as it begins, and refuses one that does not let Lustre through.
                depends_on=self._network.rules["storage"],
                # Its zone is chosen once: in another one it would be another, empty file system.
                ignore_changes=["subnetIds"],
            ),
        )
        links = [self._link(own, made, number, one, mount) for number, one in enumerate(linked)]
        return pulumi.Output.all(made.dns_name, made.mount_name, *(link.id for link in links)).apply(
            lambda known: f"{known[0]}@tcp:/{known[1]}"
        )

    def _lustre_subnet(self) -> pulumi.Output[str]:
        network = self._network
        first = (
            network.zones.head if network.zones.head in network.zones.compute else network.zones.compute[0]
        )
        return network.private[first]

    def _link(
        self, own: str, system: aws.fsx.LustreFileSystem, number: int, one: Repository, mount: Mount
    ) -> aws.fsx.DataRepositoryAssociation:
        events = list(EVENTS)
        s3 = aws.fsx.DataRepositoryAssociationS3Args(
            auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=events)
            if one.imports
            else None,
            auto_export_policy=aws.fsx.DataRepositoryAssociationS3AutoExportPolicyArgs(events=events)
            if one.exports
            else None,
        )
        return aws.fsx.DataRepositoryAssociation(
            f"{own}-s3-{number}",
            file_system_id=system.id,
            file_system_path=one.path,
            data_repository_path=one.source,
            batch_import_meta_data_on_create=one.imports,
            s3=s3,
            tags=self._tags(mount),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _tags(self, mount: Mount) -> dict[str, str]:
        return tags(self._design, f"{self._design.name}-{_part(mount)}")


class AwsDisks(pulumi.ComponentResource):
    """The volumes on the controller, which may be another machine's tomorrow.

    Args:
        instance: the controller's id.
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
                # A mounted volume cannot be detached: the controller stops first, with its files in order.
                stop_instance_before_detaching=True,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})


def devices(design: ClusterDesign) -> dict[str, str]:
    """Path -> device, for each directory that the controller exports."""
    paths = [mount.path for mount in design.mounts if mount.kind == "nfs"]
    order = [*FIXED, *(path for path in paths if path not in FIXED)]
    return {path: f"/dev/sd{LETTERS[order.index(path)]}" for path in paths}


def repositories(mount: Mount) -> list[Repository]:
    """The associations with S3 that a Lustre mount asks for; none with SCRATCH_1, which has its own way.

    One folder is the whole file system. Two different ones cannot both be: objects of the first appear below
    `/import`, and what is written below `/export` goes to the second.

    Raises:
        UserError: SCRATCH_1, and something that it does not offer.
    """
    source, target = mount.s3_import, mount.s3_export
    if mount.deployment == "SCRATCH_1":
        if target and (source is None or _bucket(source) != _bucket(target)):
            raise UserError(
                f"slurm-stacks:cluster.storage: {mount.path}: with SCRATCH_1 FSx writes back only to the "
                "bucket of s3_import; take deployment: SCRATCH_2, or give both in one bucket"
            )
        return []
    if source and target and source.rstrip("/") != target.rstrip("/"):
        return [Repository("/import", source, True, False), Repository("/export", target, False, True)]
    folder = source or target
    return [Repository("/", folder, source is not None, target is not None)] if folder else []


def _bucket(address: str) -> str:
    return address.removeprefix("s3://").partition("/")[0]


def _part(mount: Mount) -> str:
    return mount.path.strip("/").replace("/", "-")
