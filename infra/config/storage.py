"""The models of storage in a stack file. `infra.config.rules` says which values go with which kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.config.fields import ANY_BUCKET, BUCKET, SECURITY_GROUP, MountPath, Section
from infra.effects import HERE, Kind, Outcome, effect

SharedKind = Literal["nfs", "efs", "filestore", "fsx_lustre"]
GROWS = "the file system follows at the machine's next start; disks of Google Cloud only grow"
"""What users are told of a larger disk on Google Cloud."""


class Gp3Config(Section):
    """The performance of an EBS volume.

    Without it a volume has 3,000 IOPS and 125 MiB/s, which cost nothing more.
    """

    iops: int | None = Field(
        None,
        ge=3000,
        le=80000,
        description="3,000 (the default) to 80,000, and at most 500 for each GiB of the disk.",
    )
    throughput_mibs: int | None = Field(
        None,
        ge=125,
        le=2000,
        description="MiB/s: 125 (the default) to 2,000, and at most a quarter of the IOPS.",
    )


class SharedStorage(Section):
    """A directory that every machine of the cluster mounts at the same path."""

    kind: Annotated[SharedKind, effect(clouds=Kind.DATA, local=Outcome(Kind.NOTHING, HERE))] = Field(
        "nfs",
        description="nfs: exported by the controller from a disk of its own. efs, fsx_lustre: AWS. "
        "filestore: Google Cloud.",
    )
    path: Annotated[
        MountPath | None,
        effect(
            clouds=Outcome(Kind.DATA, "another path is another file system"),
            local=Outcome(Kind.NOTHING, HERE),
            design=(),
        ),
    ] = Field(
        None, description="Where it is mounted. Default: /home, /apps, and /fsx or /scratch for scratch."
    )
    size_gib: Annotated[
        int | None,
        effect(
            aws=Outcome(Kind.LIVE, "less: EBS refuses it, Lustre is recreated", Kind.NEVER),
            gcp=Outcome(Kind.LIVE, GROWS, Kind.NEVER),
            local=Outcome(Kind.NOTHING, HERE),
        ),
    ] = Field(
        None,
        gt=0,
        le=10_000_000,
        description="Size in GiB. nfs: 50 by default, 10 at least on Google Cloud. filestore: see tier. "
        "fsx_lustre: SCRATCH_2, PERSISTENT_1 (SSD) and PERSISTENT_2 take 1200 and multiples of 2400; "
        "SCRATCH_1 takes 1200, 2400 and multiples of 3600. efs has no size.",
    )
    deployment: Annotated[
        Literal["SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2"] | None, effect(aws=Kind.DATA)
    ] = Field(
        None, description="fsx_lustre: deployment type; SCRATCH_2 by default. Scratch types keep no replicas."
    )
    storage_type: Annotated[Literal["SSD", "HDD"] | None, effect(aws=Kind.DATA)] = Field(
        None, description="fsx_lustre: SSD by default; HDD with PERSISTENT_1 only."
    )
    throughput: Annotated[int | None, effect(aws=Kind.LIVE)] = Field(
        None,
        gt=0,
        description="fsx_lustre, persistent types only: MB/s for each TiB. PERSISTENT_2: 125, 250, 500, "
        "1000; PERSISTENT_1: 50, 100, 200 (SSD) or 12, 40 (HDD).",
    )
    s3_import: Annotated[str | None, effect(aws=Outcome(Kind.LIVE, "SCRATCH_1: recreated"))] = Field(
        None,
        pattern=BUCKET,
        description="fsx_lustre: s3://bucket/prefix whose objects appear as files.",
    )
    s3_export: Annotated[str | None, effect(aws=Outcome(Kind.LIVE, "SCRATCH_1: recreated"))] = Field(
        None,
        pattern=BUCKET,
        description="fsx_lustre: s3://bucket/prefix to which changed files are written back.",
    )
    tier: Annotated[
        Literal["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL", "ENTERPRISE", "HIGH_SCALE_SSD"] | None,
        effect(gcp=Outcome(Kind.DATA, "another tier is another file system"), design=("storage.deployment",)),
    ] = Field(
        None,
        description="filestore: tier; BASIC_HDD by default. GiB: BASIC_HDD 1024 to 65433, BASIC_SSD 2560 "
        "to 65433, ZONAL 100 and REGIONAL 1024 to 10239 or 10240 to 102400 in steps of 2560, ENTERPRISE "
        "1024 to 10240 in steps of 256, HIGH_SCALE_SSD 10240 to 102400 in steps of 2560.",
    )

    gp3: Annotated[
        Gp3Config | None, effect(aws=Outcome(Kind.LIVE, "EBS changes a volume once in six hours"))
    ] = Field(None, description="nfs on AWS: the performance of the controller's disk.")
    existing: Annotated[str | None, effect(clouds=Outcome(Kind.DATA, "another one, with other files"))] = (
        Field(
            None,
            min_length=1,
            description="What is there already and is only used: `down` leaves it. efs, fsx_lustre: fs-…. "
            "nfs: a disk for the controller (vol-… on AWS, a persistent disk's name on Google Cloud) or an "
            "NFS export, server:/path. filestore: an instance's name in gcp:zone, or "
            "projects/…/locations/…/instances/….",
        )
    )
    security_group: Annotated[str | None, effect(clouds=Kind.LIVE)] = Field(
        None,
        pattern=SECURITY_GROUP,
        description="With existing, on AWS: the security group of its network interfaces. `up` opens its "
        "ports there for this cluster's machines, and `down` closes them. efs without it: `up` makes mount "
        "targets of its own.",
    )
    keep: Annotated[bool, effect(clouds=Kind.LIVE)] = Field(
        False,
        description="`down` leaves it, and says what it costs and which lines take it back.",
    )
    snapshot: Annotated[bool, effect(clouds=Kind.LIVE)] = Field(
        False,
        description="`down` makes a snapshot (nfs) or a backup (fsx_lustre, persistent types) and deletes "
        "the original.",
    )
    restore: Annotated[str | None, effect(clouds=Outcome(Kind.NOTHING, "files are there already"))] = Field(
        None,
        min_length=1,
        description="Begin with the files of a snapshot (nfs: snap-… on AWS, a snapshot's name on Google "
        "Cloud) or of a backup (fsx_lustre: backup-…). It has no effect on what is there already.",
    )

    def is_export(self) -> bool:
        """Return whether it is somebody's own NFS export, `server:/path`."""
        return self.kind == "nfs" and self.existing is not None and ":/" in self.existing

    def mounted_at(self, name: str) -> str:
        """Return the path of this directory, whose key in the stack file is `name`."""
        return self.path or ("/fsx" if self.kind == "fsx_lustre" else f"/{name}")

    def lustre_deployment(self) -> str:
        """Return the deployment type of FSx for Lustre."""
        return self.deployment or "SCRATCH_2"


class StateStorage(Section):
    """The disk with Slurm's state and accounting, apart from the controller's root disk."""

    kind: Literal["disk"] = Field("disk", description="disk: a disk of the controller's alone.")
    size_gib: int | None = Field(
        None, gt=0, le=10_000_000, description="Size in GiB: 20 by default, 10 at least on Google Cloud."
    )
    gp3: Gp3Config | None = Field(None, description="AWS: the performance of the disk.")
    existing: str | None = Field(
        None,
        min_length=1,
        description="A disk that an earlier cluster of this name has left: vol-… on AWS, a persistent disk's "
        "name on Google Cloud. `down` leaves it.",
    )
    keep: bool = Field(
        False,
        description="`down` leaves it, and says what it costs and which lines take it back.",
    )
    snapshot: bool = Field(False, description="`down` makes a snapshot and deletes the original.")
    restore: str | None = Field(
        None,
        min_length=1,
        description="Begin with a snapshot: snap-… on AWS, a snapshot's name on Google Cloud. It has no "
        "effect on what is there already.",
    )

    def as_shared(self) -> SharedStorage:
        """Return it as a disk of the controller's, to which the same rules apply."""
        given = self.model_dump(exclude_unset=True, exclude={"kind"})
        return SharedStorage.model_validate({"kind": "nfs", **given})


class LocalScratch(Section):
    """The NVMe disks of each compute node as one directory: fast, and lost with the node."""

    kind: Literal["nvme"] = Field("nvme", description="nvme: the machine's own NVMe disks as one RAID 0.")
    path: MountPath = Field("/local_scratch", description="Where it is mounted.")


class BucketConfig(Section):
    """A bucket of S3 or Cloud Storage that nodes and login machines see as a directory."""

    bucket: str = Field(
        pattern=ANY_BUCKET,
        description="s3://bucket/prefix on AWS, gs://bucket/folder on Google Cloud. It is there already, and "
        "`down` leaves it.",
    )
    path: MountPath = Field(description="Where it is mounted.")
    read_only: bool = Field(
        True,
        description="false: every user may make, replace and delete objects there. Neither client can change "
        "a part of an object.",
    )


class StorageConfig(Section):
    """The cluster's directories. By default a cloud's controller exports /home and /apps."""

    home: SharedStorage | None = Field(None, description="Home directories, /home.")
    apps: SharedStorage | None = Field(None, description="Shared software and training environments, /apps.")
    scratch: SharedStorage | None = Field(None, description="A fast shared file system for data sets.")
    buckets: Annotated[
        list[BucketConfig],
        effect(Outcome(Kind.NODES, "it and its objects stay; the controller has it at once"), design=()),
    ] = Field(default_factory=list, description="Buckets of S3 or Cloud Storage as directories.")
    state: StateStorage | None = Field(
        None, description="The disk with Slurm's state (controller.state: kept)."
    )
    local_scratch: Annotated[
        LocalScratch | None,
        effect(aws=Outcome(Kind.RENEWED, design=()), gcp=Kind.RENEWED, design=("partitions.local_ssds",)),
    ] = Field(None, description="Each compute node's own NVMe disks.")
