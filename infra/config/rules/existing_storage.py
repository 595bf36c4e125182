"""Rules of storage that outlives a cluster or existed before it: existing, kept, snapshots, restored."""

from __future__ import annotations

import re
from collections.abc import Mapping

from infra.config.mistakes import Location
from infra.config.rules.context import MISSING, Context
from infra.config.storage import Gp3Config, SharedStorage

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
        c.add("existing.form", where, existing, words)
    for key in sorted(part.model_fields_set - {"kind", "path", "existing", "security_group"}):
        if (value := getattr(part, key)) not in (None, False):
            shown = value.model_dump(exclude_none=True) if isinstance(value, Gp3Config) else value
            c.add(
                "existing.other-keys",
                (*at, key),
                shown,
                "nothing beside existing",
                f"its owner decides that: remove {key}",
            )
    network = c.cluster.network
    service = part.kind in ("efs", "fsx_lustre")
    if part.security_group is not None and not service:
        c.add(
            "security-group.kind",
            (*at, "security_group"),
            part.security_group,
            "with efs and fsx_lustre only",
            "remove it",
        )
    elif service and part.security_group is not None and network.aws is None:
        c.add(
            "security-group.network",
            (*at, "security_group"),
            part.security_group,
            "a group in the VPC that network.aws names",
            "write network: {aws: …}, the VPC of the file system",
        )
    elif part.kind == "fsx_lustre" and part.security_group is None:
        c.add(
            "security-group.missing",
            (*at, "security_group"),
            MISSING,
            "the security group of the file system, sg-…, in the VPC that network.aws names",
            f"`aws fsx describe-file-systems --file-system-ids {existing}` shows its interfaces",
        )
    if part.kind == "filestore" and network.gcp is None:
        c.add(
            "existing.filestore-network",
            where,
            existing,
            "an instance in the network that network.gcp names",
            "write network: {gcp: …}",
        )


def check_end(c: Context, part: SharedStorage, at: Location) -> None:
    """Check what becomes of a disk or a file system of the cluster's own when the cluster is destroyed."""
    if part.security_group is not None:
        c.add(
            "security-group.needs-existing",
            (*at, "security_group"),
            part.security_group,
            "with existing only",
            "remove it",
        )
    if part.keep and part.kind in OWN_NETWORK:
        key, why = OWN_NETWORK[part.kind]
        if getattr(c.cluster.network, key) is None:
            c.add(
                "keep.needs-network",
                (*at, "keep"),
                True,
                f"with an existing network, network: {{{key}: …}}",
                why,
            )
    if part.snapshot:
        _snapshot(c, part, at)
    if part.restore is not None:
        _restore(c, part, at)


def _snapshot(c: Context, part: SharedStorage, at: Location) -> None:
    where = (*at, "snapshot")
    if part.keep:
        c.add(
            "snapshot.with-keep",
            where,
            True,
            "keep or snapshot, not both",
            "what is kept needs no snapshot: remove one",
        )
    elif part.kind in NO_SNAPSHOT:
        c.add(
            "snapshot.kind",
            where,
            True,
            f"nothing with kind {part.kind}",
            f"{NO_SNAPSHOT[part.kind]}; or write keep: true",
        )
    elif part.kind == "fsx_lustre":
        _backup(c, part, where, True)


def _restore(c: Context, part: SharedStorage, at: Location) -> None:
    where = (*at, "restore")
    if (form := RESTORED.get((c.provider, part.kind))) is None:
        c.add("restore.kind", where, part.restore, f"nothing with kind {part.kind}", NO_SNAPSHOT[part.kind])
    elif not re.fullmatch(form[0], str(part.restore)):
        c.add("restore.form", where, part.restore, form[1])
    elif part.kind == "fsx_lustre":
        _backup(c, part, where, part.restore)


def _backup(c: Context, part: SharedStorage, where: Location, value: object) -> None:
    """Check that FSx backs it up: persistent, and not linked to S3 (FSx API, CreateBackup)."""
    if not part.lustre_deployment().startswith("PERSISTENT"):
        allowed = "with deployment PERSISTENT_1 or PERSISTENT_2"
        c.add(
            "backup.not-persistent",
            where,
            value,
            allowed,
            f"FSx has no backups of {part.lustre_deployment()}",
        )
    elif part.s3_import or part.s3_export:
        c.add(
            "backup.linked",
            where,
            value,
            "without s3_import and s3_export",
            "FSx has no backups of what is linked to S3",
        )
