"""Looks up the disks, instances and snapshots that a stack file names, before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.findings import Finding, fine, stops, warns
from infra.gcp.storage import REGIONAL
from node.design.model import ClusterDesign
from node.design.storage import Mount
from node.elastic.drivers.gce.names import instance_of, resource_of, short
from operations.gcp.account import Account, GoogleError
from operations.gcp.leftovers import KEPT, bucket

STORAGE = "storage"
COMPUTE = "projects/{project}"


def storage_findings(account: Account, design: ClusterDesign) -> Iterator[Finding]:
    """Check each existing disk, instance and snapshot by what Google Cloud says of it.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    for mount in design.mounts:
        if mount.existing is not None:
            if mount.served_by == "controller":
                yield _disk(account, design, mount)
            elif mount.kind == "filestore":
                yield _filestore(account, design, mount)
            elif mount.kind == "gcs":
                way = "writable" if mount.writable else "read-only"
                use = f"is mounted at {mount.path}, {way}"
                yield _bucket(account, f"storage.{mount.name}.bucket", mount.bucket()[0], use)
            else:
                yield fine(STORAGE, f"{_key(mount)}: {mount.existing} is not checked here: machines mount it")
        elif mount.keep and (finding := _kept_before(account, design, mount)):
            yield finding
        elif mount.restore is not None:
            yield from _snapshot(account, design, mount)
    if design.backup is not None:
        name = design.backup.place()[0].removeprefix("gs://")
        yield _bucket(account, "controller.backup.bucket", name, "gets the backups", limited=True)
    for source, name in fetched(design).items():
        yield _bucket(account, source, name, "is read", limited=True)


def fetched(design: ClusterDesign) -> dict[str, str]:
    """Return the hooks and packages that lie in Cloud Storage, one for each bucket -> the bucket's name."""
    roles = dict.fromkeys(("all", *(hook.role for hook in design.hooks)))
    sources = [source for role in roles for source in design.fetched(role, "gs://")]
    buckets = {source.removeprefix("gs://").partition("/")[0]: source for source in reversed(sources)}
    return {source: bucket for bucket, source in buckets.items()}


def _key(mount: Mount, key: str = "existing") -> str:
    return f"storage.{mount.name}.{key}"


def _get(account: Account, service: str, path: str) -> dict[str, Any] | None:
    try:
        return account.call("GET", service, path)
    except GoogleError as error:
        if error.status != 404:
            raise
        return None


def _disk(account: Account, design: ClusterDesign, mount: Mount) -> Finding:
    name, where = str(mount.existing), _key(mount)
    disk = _get(account, "compute", f"{COMPUTE}/zones/{design.zone}/disks/{name}")
    if disk is None:
        problem = f"{where}: there is no disk {name} in {design.zone} of {account.project}"
        return stops(
            STORAGE, problem, "A disk can be used in its own zone only: correct the name or gcp:zone."
        )
    controller = instance_of(design.name, "controller")
    if others := [user for user in map(short, disk.get("users", [])) if user != controller]:
        cure = "A disk has one machine: detach it there first, or make a snapshot."
        return stops(STORAGE, f"{where}: {name} is attached to {', '.join(others)}", cure)
    return fine(STORAGE, f"{where}: {name} has {disk.get('sizeGb', '?')} GiB, and {mount.path} is on it")


def _kept_before(account: Account, design: ClusterDesign, mount: Mount) -> Finding | None:
    """Whether an earlier cluster of this name left what `up` would make: Google's names are taken once."""
    name = resource_of(design.name, mount.path)
    kind, service, path = (
        ("disk", "compute", f"zones/{design.zone}/disks/{name}")
        if mount.kind in ("nfs", "disk")
        else ("Filestore instance", "file", _filestore_instance(design, mount, name))
    )
    resource = _get(account, service, f"{COMPUTE}/{path}")
    # While a cluster is up it has a bucket, and this is its own.
    if resource is None or KEPT not in resource.get("labels", {}) or bucket(account, design.name) is not None:
        return None
    problem = (
        f"{_key(mount, 'keep')}: the {kind} {name} is there already, from an earlier cluster {design.name}"
    )
    whole = f"projects/{account.project}/{path}" if mount.deployment in REGIONAL else name
    return stops(STORAGE, problem, f"Write existing: {whole} to have its files again, or delete it.")


def _filestore_instance(design: ClusterDesign, mount: Mount, name: str) -> str:
    place = design.region if mount.deployment in REGIONAL else design.zone
    return f"locations/{place}/instances/{name}"


def _filestore(account: Account, design: ClusterDesign, mount: Mount) -> Finding:
    name, where = str(mount.existing), _key(mount)
    path = name if "/" in name else f"{COMPUTE}/locations/{design.zone}/instances/{name}"
    instance = _get(account, "file", path)
    if instance is None:
        problem = f"{where}: there is no Filestore instance {path.format(project=account.project)}"
        cure = "`gcloud filestore instances list` shows yours; one of a region needs its whole path."
        return stops(STORAGE, problem, cure)
    networks = [short(str(network.get("network", ""))) for network in instance.get("networks", [])]
    if design.network.vpc not in networks:
        problem = f"{where}: {name} is in the network {', '.join(networks)}, not in {design.network.vpc}"
        return stops(STORAGE, problem, "Write its network as network.gcp: it is mounted from there only.")
    if instance.get("state") != "READY":
        return stops(STORAGE, f"{where}: {name} is {instance.get('state')}", "Wait until it is READY.")
    share = instance["fileShares"][0]
    return fine(STORAGE, f"{where}: {name} has {share.get('capacityGb', '?')} GiB as {share['name']}")


def _bucket(account: Account, where: str, name: str, use: str, *, limited: bool = False) -> Finding:
    """Check a bucket.

    Args:
        where: The stack file's key.
        use: What it is for, for the finding.
        limited: Whether the grant on it has a condition, which Cloud Storage takes only on buckets with
            uniform bucket-level access.
    """
    try:
        if (bucket := _get(account, "storage", f"b/{name}")) is None:
            return stops(STORAGE, f"{where}: there is no bucket {name}", "Correct the name, or make it.")
    except GoogleError as error:
        if error.status != 403:
            raise
        cure = "`up` needs the permission to grant its machines access to it."
        return warns(STORAGE, f"{where}: {name} does not let you in", cure)
    access = bucket.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    if limited and not access.get("enabled"):
        return stops(
            STORAGE,
            f"{where}: {name} has no uniform bucket-level access, without it Cloud Storage refuses a grant "
            "of no more than the cluster needs there",
            f"`gcloud storage buckets update gs://{name} --uniform-bucket-level-access`, after which the "
            "permissions of single objects no longer count; or take another bucket.",
        )
    return fine(STORAGE, f"{where}: {name} {use}")


def _snapshot(account: Account, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    """Check a snapshot, which counts only before the disk exists."""
    name, where = str(mount.restore), _key(mount, "restore")
    disk = resource_of(design.name, mount.path)
    if _get(account, "compute", f"{COMPUTE}/zones/{design.zone}/disks/{disk}") is not None:
        return
    snapshot = _get(account, "compute", f"{COMPUTE}/global/snapshots/{name}")
    if snapshot is None:
        problem = f"{where}: there is no snapshot {name} in {account.project}"
        yield stops(STORAGE, problem, "`gcloud compute snapshots list` shows yours.")
        return
    size = int(snapshot.get("diskSizeGb", 0))
    if snapshot.get("status") != "READY":
        yield stops(STORAGE, f"{where}: {name} is {snapshot.get('status')}", "Wait until it is READY.")
    elif size > (mount.size_gib or 0):
        problem = f"{where}: {name} has {size} GiB, and {mount.path} {mount.size_gib} GiB"
        yield stops(STORAGE, problem, f"Write size_gib: {size}, or more.")
    else:
        yield fine(STORAGE, f"{where}: {mount.path} begins with the files of {name} ({size} GiB)")
