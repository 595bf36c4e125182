"""What machines mount, from the storage of a stack file: a part of the design."""

from __future__ import annotations

from infra.config import ClusterConfig
from infra.config.storage import BucketConfig, Gp3Config, LocalScratch, SharedStorage
from node import model

DEFAULT_NFS_GIB = 50
MOUNT_OPTIONS = {
    # Hard mounts wait for a controller that does not answer, so that jobs do not fail.
    "nfs": "rw,hard,nfsvers=4.2,_netdev",
    # Somebody's own server: client and server agree on a version.
    "export": "rw,hard,_netdev",
    "efs": "rw,hard,nfsvers=4.1,rsize=1048576,wsize=1048576,timeo=600,_netdev",
    "filestore": "rw,hard,nfsvers=3,timeo=600,_netdev",
    "fsx_lustre": "relatime,flock,_netdev",
    "nvme": "noatime,nofail",
}


def gp3_of(said: Gp3Config | None) -> model.Gp3 | None:
    """The performance of a disk; `None` means what every gp3 volume has."""
    return model.Gp3(said.iops, said.throughput_mibs) if said is not None else None


def mounts_of(cluster: ClusterConfig) -> tuple[model.Mount, ...]:
    """The directories that machines mount.

    On the local stack process machines share this machine's directories, so nothing is mounted. Containers
    get folders of the run directory where a cloud has NFS.
    """
    if cluster.provider == "local":
        own_root = cluster.local is not None and cluster.local.isolation == "container"
        return tuple(model.Mount(path=path, kind="bind") for path in ("/apps", "/home")) if own_root else ()
    storage = cluster.storage
    # AWS Batch has no controller that could export directories.
    own = SharedStorage() if cluster.scheduler == "slurm" else None
    shared = {"home": storage.home or own, "apps": storage.apps or own, "scratch": storage.scratch}
    mounts = [_shared_mount(name, part) for name, part in shared.items() if part is not None]
    users = "controller" if cluster.login.count == 0 else "login"
    mounts += [_bucket_mount(index, one, (users, "compute")) for index, one in enumerate(storage.buckets)]
    if isinstance(storage.local_scratch, LocalScratch):
        path = storage.local_scratch.path
        options = MOUNT_OPTIONS["nvme"]
        mounts.append(model.Mount(path, "nvme", ("compute",), name="local_scratch", options=options))
    return tuple(mounts)


def _bucket_mount(index: int, one: BucketConfig, roles: tuple[str, ...]) -> model.Mount:
    return model.Mount(
        path=one.path,
        kind="s3" if one.bucket.startswith("s3://") else "gcs",
        roles=roles,
        name=f"buckets[{index}]",
        options="ro" if one.read_only else "rw",
        existing=one.bucket.rstrip("/"),
    )


def _shared_mount(name: str, part: SharedStorage) -> model.Mount:
    lustre = part.kind == "fsx_lustre" and part.existing is None
    own = part.kind == "nfs" and not part.is_export()
    deployment = {"fsx_lustre": part.lustre_deployment(), "filestore": part.tier or "BASIC_HDD"}.get(
        part.kind
    )
    if part.existing is not None:
        # Its owner chose what it is.
        deployment = None
    return model.Mount(
        path=part.mounted_at(name),
        kind=part.kind,
        name=name,
        # A file server of somebody's is mounted from there; a disk is exported by the controller.
        served_by="controller" if own else None,
        options=MOUNT_OPTIONS["export" if part.is_export() else part.kind],
        size_gib=part.size_gib or (DEFAULT_NFS_GIB if own and part.existing is None else None),
        deployment=deployment,
        storage_type=(part.storage_type or "SSD") if lustre else None,
        throughput=part.throughput,
        s3_import=part.s3_import,
        s3_export=part.s3_export,
        gp3=gp3_of(part.gp3),
        existing=part.existing,
        security_group=part.security_group,
        keep=part.keep,
        snapshot=part.snapshot,
        restore=part.restore,
    )
