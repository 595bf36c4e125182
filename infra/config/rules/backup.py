"""Rules of scheduled backups: whose bucket it is, and that no user can read it."""

from __future__ import annotations

from infra.config.fields import gs_bucket
from infra.config.hosts import BackupConfig
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, Context

SCHEMES = {"aws": "s3://", "gcp": "gs://", "local": "/"}
"""Provider -> the beginning of the place of backups."""


def check_backup(c: Context) -> None:
    """Check the schedule of backups."""
    backup, at = c.cluster.controller.backup, (*CLUSTER, "controller", "backup")
    if backup is None:
        return
    if c.cluster.has_process_machines():
        c.add(
            "backup.processes",
            at,
            backup.model_dump(exclude_unset=True),
            "nothing where machines are processes: their files are this machine's, and are saved with it",
            "remove backup, or write local: {isolation: container}",
        )
        return
    scheme = SCHEMES[c.provider]
    if not backup.bucket.startswith(scheme):
        place = "the absolute path of a folder" if c.provider == "local" else f"{scheme}…"
        c.add("backup.scheme", (*at, "bucket"), backup.bucket, f"{place} on {c.provider}")
        return
    if c.provider == "gcp" and not gs_bucket(_parts(backup.bucket)[0]):
        c.add("bucket.name", (*at, "bucket"), backup.bucket, "the name of a bucket")
    _check_closed(c, backup, (*at, "bucket"))


def _check_closed(c: Context, backup: BackupConfig, at: Location) -> None:
    """Check that users do not see the bucket as a directory, or have files written back to it."""
    bucket, prefix = _parts(backup.bucket)
    storage = c.cluster.storage
    seen = {f"storage.buckets[{index}]": mount.bucket for index, mount in enumerate(storage.buckets)}
    for key in ("home", "apps", "scratch"):
        part = getattr(storage, key)
        for name in ("s3_import", "s3_export"):
            if (address := getattr(part, name, None)) is not None:
                seen[f"storage.{key}.{name}"] = address
    for key, address in seen.items():
        other, beginning = _parts(address)
        # Cloud Storage FUSE sees the whole bucket: a folder cannot limit its grant.
        near = c.provider == "gcp" or prefix.startswith(beginning) or beginning.startswith(prefix)
        if bucket == other and near:
            c.add(
                "backup.open-to-users",
                at,
                backup.bucket,
                f"a place that users cannot read: {key} shows them {address}, and a backup has the "
                "secrets of all",
                "name another bucket, or on AWS another prefix",
            )
            return


def _parts(address: str) -> tuple[str, str]:
    """Return the bucket, and the beginning of the names in it: it ends with a slash, or is empty."""
    bucket, _, name = address.partition("://")[2].strip("/").partition("/")
    return bucket, f"{name}/" if name else ""
