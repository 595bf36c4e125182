"""Which files a change of a running cluster deletes, and the way that keeps them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from node.model import ClusterDesign, Mount

OWN = ("nfs", "efs", "filestore", "fsx_lustre")
"""The kinds of mounts whose disk or file system is a resource of the cluster, if they are not `existing`."""
LOCAL = (
    "the cluster's folder on this machine, with what users and jobs have written there: copy what you need "
    "to another folder first"
)
ACCOUNTING = (
    "the accounting that `sacct` shows: it is on the controller's own disk; save what you need first, with "
    "`./cluster exec -- sacct --allusers --starttime 1970-01-01 --parsable2`"
)
BACK = "then make this change, name it with `restore`, and run `up`"


def is_own(mount: Mount) -> bool:
    """Whether the files of a mount are on a disk or a file system that the cluster has made."""
    return mount.kind in OWN and mount.existing is None


def of_mount(mount: Mount) -> str:
    """The line about the files of a mount that a change deletes: which, how much, and how to keep them."""
    size = "" if mount.size_gib is None else f", {mount.size_gib} GiB"
    return f"{mount.path} ({mount.kind}{size}): {way(mount)}"


def of_cluster(design: ClusterDesign) -> Iterator[str]:
    """The lines about all files of a cluster that another one takes the place of."""
    if design.provider == "local":
        yield LOCAL
    yield from (of_mount(mount) for mount in design.mounts if is_own(mount))


def on_head(design: ClusterDesign) -> tuple[str, ...]:
    """The lines about what is on the controller's root disk besides its queue, of which a change says the
    end by its kind."""
    return (ACCOUNTING,) if design.slurm.accounting else ()


def way(mount: Mount) -> str:
    """How the files of a mount can be kept when its disk or file system goes (docs/storage.md)."""
    if mount.keep:
        return "it stays, because of `keep: true`, but is not used any more; `existing` takes it back"
    if mount.kind == "nfs":
        return _saved(mount, "a snapshot", "snap-…, or its name")
    if mount.kind == "efs":
        return (
            "add `keep: true`, put the old values back and run `up`; then make this change, and name it with "
            "`existing`"
        )
    if mount.kind == "filestore":
        return (
            "make a backup with `gcloud filestore backups create`, restore it to an instance of your own, "
            "and name that with `existing`"
        )
    return _of_lustre(mount)


def _of_lustre(mount: Mount) -> str:
    if mount.s3_export is not None:
        return (
            f"what is exported to {mount.s3_export} stays there, and with that as `s3_import` the new one "
            "shows it; export or copy the rest first (`lfs hsm_state` names what is not archived)"
        )
    if (mount.deployment or "").startswith("PERSISTENT") and mount.s3_import is None:
        return _saved(mount, "a backup", "backup-…")
    return "this kind has no backup: copy its files to S3 or to another directory first"


def _saved(mount: Mount, what: str, name: str) -> str:
    """The way by a snapshot or backup, which a destroy makes and `restore` begins with."""
    how = (
        "run `down`, which makes {} ({})"
        if mount.snapshot
        else ("add `snapshot: true`, put the old values back, run `up` and then `down`, which makes {} ({})")
    )
    return f"{how.format(what, name)}; {BACK}"
