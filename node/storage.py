"""The design's types of storage: what machines mount, and how fast a disk is."""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = ("s3", "gcs")
"""The kinds of mounts that are buckets."""


@dataclass(frozen=True, slots=True)
class Gp3:
    """The performance of an EBS volume of type gp3. `None` means what every volume has."""

    iops: int | None = None
    throughput: int | None = None
    """MiB/s."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory that machines share, or a scratch directory of each node."""

    path: str
    kind: str
    """nfs | efs | filestore | fsx_lustre | nvme | s3 | gcs | bind (local stack: a folder of this machine)"""
    roles: tuple[str, ...] = ("controller", "login", "compute")
    served_by: str | None = None
    """The role whose machine exports it (nfs); `None` if a service or somebody's own NFS server does."""
    options: str = "defaults"
    size_gib: int | None = None
    deployment: str | None = None
    """fsx_lustre: the deployment type (SCRATCH_2, PERSISTENT_2, …); filestore: the tier."""
    storage_type: str | None = None
    """fsx_lustre: SSD | HDD."""
    throughput: int | None = None
    """fsx_lustre with a persistent deployment type: MB/s for each TiB."""
    s3_import: str | None = None
    """fsx_lustre: the `s3://bucket/prefix` whose objects appear as files."""
    s3_export: str | None = None
    """fsx_lustre: the `s3://bucket/prefix` to which changed files are written."""
    name: str = ""
    """Its key below `storage` in the stack file: home, apps, scratch or local_scratch."""
    gp3: Gp3 | None = None
    """nfs on AWS: the performance of the controller's disk."""
    existing: str | None = None
    """What is there already, and stays when the cluster goes: `fs-…`, `vol-…`, the name of a disk or of a
    Filestore instance, `server:/path` of an NFS server, or the address of a bucket."""
    security_group: str | None = None
    """AWS, existing: the group of its network interfaces, in which the cluster opens its ports."""
    keep: bool = False
    """Whether it stays when the cluster is destroyed."""
    snapshot: bool = False
    """Whether a snapshot (nfs) or a backup (fsx_lustre) is made when the cluster is destroyed."""
    restore: str | None = None
    """The snapshot or the backup with which it begins."""

    def bucket(self) -> tuple[str, str]:
        """The name and the prefix of its bucket: a prefix ends with a slash, or is empty."""
        name, _, prefix = str(self.existing).partition("://")[2].partition("/")
        return name, f"{prefix}/" if prefix else ""

    @property
    def writable(self) -> bool:
        """Whether users may write to its bucket."""
        return "rw" in self.options.split(",")
