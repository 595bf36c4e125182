"""The design's types of storage: what machines mount, and how fast a disk is."""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = ("s3", "gcs")
"""The kinds of mounts that are buckets."""


@dataclass(frozen=True, slots=True)
class Gp3:
    """The performance of an EBS volume of type gp3. `None` means what every volume has.

    Attributes:
        throughput: MiB/s.
    """

    iops: int | None = None
    throughput: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory that machines share, or a scratch directory of each node.

    Attributes:
        kind: nfs | efs | filestore | fsx_lustre | nvme | s3 | gcs | bind (local stack: a folder of this
            machine) | disk (the controller's state, which no other machine mounts)
        served_by: The role whose machine has the disk (nfs, disk); `None` if a service or somebody's own NFS
            server has the files.
        deployment: fsx_lustre: the deployment type (SCRATCH_2, PERSISTENT_2, …); filestore: the tier.
        storage_type: fsx_lustre: SSD | HDD.
        throughput: fsx_lustre with a persistent deployment type: MB/s for each TiB.
        s3_import: fsx_lustre: the `s3://bucket/prefix` whose objects appear as files.
        s3_export: fsx_lustre: the `s3://bucket/prefix` to which changed files are written.
        name: Its key below `storage` in the stack file: home, apps, scratch, state or local_scratch.
        gp3: Nfs on AWS: the performance of the controller's disk.
        existing: What is there already, and stays when the cluster goes: `fs-…`, `vol-…`, the name of a disk
            or of a Filestore instance, `server:/path` of an NFS server, or the address of a bucket.
        security_group: AWS, existing: the group of its network interfaces, in which the cluster opens its
            ports.
        keep: Whether it stays when the cluster is destroyed.
        snapshot: Whether a snapshot (nfs) or a backup (fsx_lustre) is made when the cluster is destroyed.
        restore: The snapshot or the backup with which it begins.
    """

    path: str
    kind: str
    roles: tuple[str, ...] = ("controller", "login", "compute")
    served_by: str | None = None
    options: str = "defaults"
    size_gib: int | None = None
    deployment: str | None = None
    storage_type: str | None = None
    throughput: int | None = None
    s3_import: str | None = None
    s3_export: str | None = None
    name: str = ""
    gp3: Gp3 | None = None
    existing: str | None = None
    security_group: str | None = None
    keep: bool = False
    snapshot: bool = False
    restore: str | None = None

    def bucket(self) -> tuple[str, str]:
        """Return the name and the prefix of its bucket: a prefix ends with a slash, or is empty."""
        name, _, prefix = str(self.existing).partition("://")[2].partition("/")
        return name, f"{prefix}/" if prefix else ""

    @property
    def writable(self) -> bool:
        """Whether users may write to its bucket."""
        return "rw" in self.options.split(",")
