"""Checks of storage that is there already, of what `down` leaves or saves, and of disks' performance."""

from __future__ import annotations

import re
from collections.abc import Mapping

from infra.config.checks.context import CLUSTER, MISSING, Context
from infra.config.mistakes import Location
from infra.config.storage import Gp3Config, SharedStorage

DISK_GIB = 50
"""The root disk's size where the stack file gives none (`infra.design`)."""
IOPS_PER_GIB, IOPS_PER_MIBS = 500, 4
"""The ratios of gp3: IOPS for each GiB and for each MiB/s (EBS user guide, "General Purpose SSD volumes")."""
INCLUDED_IOPS = 3000
"""What every gp3 volume has."""

EXPORT = r"(?P<server>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<folder>/[^\s,:]*)"
PROJECT_PATH = r"projects/[a-z0-9.:-]+"
GOOGLE_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
EXISTING: Mapping[tuple[str, str], tuple[str, str]] = {
    ("aws", "nfs"): (rf"vol-[0-9a-f]{{8,17}}|{EXPORT}", "a volume, vol-…, or an NFS export, server:/path"),
    ("aws", "efs"): (r"fs-[0-9a-f]{8,17}", "the id of a file system, fs-…"),
    ("aws", "fsx_lustre"): (r"fs-[0-9a-f]{8,17}", "the id of a file system, fs-…"),
    ("gcp", "nfs"): (
        rf"{GOOGLE_NAME}|{EXPORT}",
        "the name of a persistent disk in gcp:zone, or an NFS export, server:/path",
    ),
    ("gcp", "filestore"): (
        rf"({PROJECT_PATH}/locations/[a-z0-9-]+/instances/)?{GOOGLE_NAME}",
        "an instance's name in gcp:zone, or projects/…/locations/…/instances/…",
    ),
}
"""Provider and kind -> the form of an existing one, and that form in words."""
RESTORED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("aws", "nfs"): (r"snap-[0-9a-f]{8,17}", "the id of an EBS snapshot, snap-…"),
    ("aws", "fsx_lustre"): (r"backup-[0-9a-f]{8,17}", "the id of an FSx backup, backup-…"),
    ("gcp", "nfs"): (GOOGLE_NAME, "the name of a snapshot of the project"),
}
NO_SNAPSHOT = {
    "efs": "EFS has no snapshots: a copy is made by AWS Backup, whose vault and plan are yours",
    "filestore": "Filestore's backups are resources of their own, which Google makes of a running instance: "
    "make one with `gcloud filestore backups create`",
}
"""Kind -> why `down` makes no snapshot of it."""
OWN_NETWORK = {
    "fsx_lustre": ("aws", "its network interfaces are in the network, which could then not be deleted"),
    "filestore": ("gcp", "an instance belongs to its network, which could then not be deleted"),
}
"""Kind -> the key of the existing network that it needs in order to outlive the cluster, and why."""


def check_existing(c: Context, part: SharedStorage, at: Location) -> None:
    """Check a file system or a disk that is there already: everything else about it is its owner's."""
    form, words = EXISTING[c.provider, part.kind]
    where, existing = (*at, "existing"), str(part.existing)
    if not re.fullmatch(form, existing):
        c.add(where, existing, words, "")
    for key in sorted(part.model_fields_set - {"kind", "path", "existing", "security_group"}):
        if (value := getattr(part, key)) not in (None, False):
            shown = value.model_dump(exclude_none=True) if isinstance(value, Gp3Config) else value
            c.add((*at, key), shown, "nothing beside existing", f"its owner decides that: remove {key}")
    network = c.cluster.network
    service = part.kind in ("efs", "fsx_lustre")
    if part.security_group is not None and not service:
        c.add((*at, "security_group"), part.security_group, "with efs and fsx_lustre only", "remove it")
    elif service and part.security_group is not None and network.aws is None:
        c.add(
            (*at, "security_group"),
            part.security_group,
            "a group in the VPC that network.aws names",
            "write network: {aws: …}, the VPC of the file system",
        )
    elif part.kind == "fsx_lustre" and part.security_group is None:
        c.add(
            (*at, "security_group"),
            MISSING,
            "the security group of the file system, sg-…, in the VPC that network.aws names",
            f"`aws fsx describe-file-systems --file-system-ids {existing}` shows its interfaces",
        )
    if part.kind == "filestore" and network.gcp is None:
        c.add(where, existing, "an instance in the network that network.gcp names", "write network: {gcp: …}")


def check_end(c: Context, part: SharedStorage, at: Location) -> None:
    """Check what becomes of a disk or a file system of the cluster's own when the cluster is destroyed."""
    if part.security_group is not None:
        c.add((*at, "security_group"), part.security_group, "with existing only", "remove it")
    if part.keep and part.kind in OWN_NETWORK:
        key, why = OWN_NETWORK[part.kind]
        if getattr(c.cluster.network, key) is None:
            c.add((*at, "keep"), True, f"with an existing network, network: {{{key}: …}}", why)
    if part.snapshot:
        _snapshot(c, part, at)
    if part.restore is not None:
        _restore(c, part, at)


def _snapshot(c: Context, part: SharedStorage, at: Location) -> None:
    where = (*at, "snapshot")
    if part.keep:
        c.add(where, True, "keep or snapshot, not both", "what is kept needs no snapshot: remove one")
    elif part.kind in NO_SNAPSHOT:
        c.add(where, True, f"nothing with kind {part.kind}", f"{NO_SNAPSHOT[part.kind]}; or write keep: true")
    elif part.kind == "fsx_lustre":
        _backup(c, part, where, True)


def _restore(c: Context, part: SharedStorage, at: Location) -> None:
    where = (*at, "restore")
    if (found := RESTORED.get((c.provider, part.kind))) is None:
        c.add(where, part.restore, f"nothing with kind {part.kind}", NO_SNAPSHOT[part.kind])
    elif not re.fullmatch(found[0], str(part.restore)):
        c.add(where, part.restore, found[1], "")
    elif part.kind == "fsx_lustre":
        _backup(c, part, where, part.restore)


def _backup(c: Context, part: SharedStorage, where: Location, value: object) -> None:
    """FSx backs up persistent file systems that are not linked to S3 (FSx API, CreateBackup)."""
    if not part.lustre_deployment().startswith("PERSISTENT"):
        allowed = "with deployment PERSISTENT_1 or PERSISTENT_2"
        c.add(where, value, allowed, f"FSx has no backups of {part.lustre_deployment()}")
    elif part.s3_import or part.s3_export:
        c.add(where, value, "without s3_import and s3_export", "FSx has no backups of what is linked to S3")


def check_performance(c: Context) -> None:
    """Check the performance of every disk against EBS's ratios."""
    cluster = c.cluster
    disks = [
        ((*CLUSTER, "controller"), cluster.controller.gp3, cluster.controller.disk_gib or DISK_GIB),
        ((*CLUSTER, "login"), cluster.login.gp3, cluster.login.disk_gib or DISK_GIB),
    ]
    for index, partition in enumerate(cluster.partitions):
        if partition.aws is not None:
            at = (*CLUSTER, "partitions", index, "aws")
            disks.append((at, partition.aws.gp3, partition.disk_gib or DISK_GIB))
    for name in ("home", "apps", "scratch"):
        part = getattr(cluster.storage, name)
        if part is not None and part.kind == "nfs" and part.existing is None:
            disks.append(((*CLUSTER, "storage", name), part.gp3, part.size_gib or DISK_GIB))
    for at, gp3, size in disks:
        if gp3 is None:
            continue
        if c.provider != "aws":
            c.add((*at, "gp3"), gp3.model_dump(exclude_none=True), "nothing: gp3 is AWS's", "remove gp3")
        else:
            _gp3(c, gp3, size, (*at, "gp3"))


def _gp3(c: Context, gp3: Gp3Config, size: int, at: Location) -> None:
    iops = gp3.iops or INCLUDED_IOPS
    # Every volume has the included IOPS, however small it is.
    if iops > (most := max(INCLUDED_IOPS, size * IOPS_PER_GIB)):
        allowed = f"at most {most} with {size} GiB: {IOPS_PER_GIB} for each GiB (EBS user guide)"
        c.add((*at, "iops"), iops, allowed, f"take {-(-iops // IOPS_PER_GIB)} GiB, or fewer")
    if gp3.throughput_mibs is not None and gp3.throughput_mibs * IOPS_PER_MIBS > iops:
        allowed = f"at most {iops // IOPS_PER_MIBS} MiB/s with {iops} IOPS: a quarter (EBS user guide)"
        c.add(
            (*at, "throughput_mibs"),
            gp3.throughput_mibs,
            allowed,
            f"take iops: {gp3.throughput_mibs * IOPS_PER_MIBS}",
        )
