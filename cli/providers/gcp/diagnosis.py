"""Checks for what would keep a cluster on Google Cloud from coming up: account, quotas, existing storage."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cli.findings import Check, Finding, fine, from_error, stops, warns
from cli.providers.clouds import diagnosis
from cli.providers.clouds.diagnosis import QUOTAS, Quota, Wanted
from cli.providers.clouds.diagnosis import quota_findings as compare
from infra.clouds.commands import ClusterRef
from infra.config import provider_settings
from infra.errors import UserError
from infra.gcp.storage import REGIONAL
from infra.instance_types.catalog import catalog
from node.design.model import Access, ClusterDesign, Host, Mount, Partition
from node.elastic.drivers.gce.names import instance_of, resource_of, short
from operations import pages
from operations.gcp import account, identity, machines
from operations.gcp.account import Account, GoogleError
from operations.gcp.leftovers import KEPT, bucket


def checks(design: ClusterDesign | None) -> list[Check]:
    """Return the checks of a design.

    Args:
        design: `None` if the stack file has mistakes; then the checks that depend on it are left out.
    """
    found = [Check("credentials", functools.partial(credentials, design))]
    if design is not None:
        found += [
            Check("project", functools.partial(project, design)),
            Check(QUOTAS, functools.partial(limits, design)),
            Check("storage", functools.partial(storage, design)),
            Check("ssh", functools.partial(ssh_programs, design.access)),
        ]
    return found


def credentials(design: ClusterDesign | None) -> Iterable[Finding]:
    """Whether there are credentials. Only Google could tell whether they are valid."""
    settings = design.provider_settings if design is not None else None
    named = identity.described(provider_settings.settings(settings))
    return diagnosis.credentials(functools.partial(account.require, settings), named)


def project(design: ClusterDesign) -> Iterable[Finding]:
    """Whether the stack file names a project."""
    if not design.project:
        found = "the stack file names no project"
        cure = "Write gcp:project into it: `gcloud projects list` shows yours."
        yield stops("project", found, cure)
    else:
        yield fine("project", f"the cluster is in project {design.project}; not looked up")


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """Quotas and GPUs; no finding without credentials or a project, which other checks report."""
    try:
        project_account = account.of(ClusterRef.of(design))
    except UserError:
        return
    if not design.project:
        return
    try:
        yield from quota_findings(project_account, design)
    except UserError as error:
        yield warns(QUOTAS, f"could not be asked for: {error}", "Nothing is known about them.")


def storage(design: ClusterDesign) -> Iterable[Finding]:
    """Check the existing disks, instances and buckets of the stack file; no finding without credentials."""
    named = design.backup is not None or any(m.existing or m.restore or m.keep for m in design.mounts)
    if not design.project or not (named or _fetched(design)):
        return
    try:
        project_account = account.of(ClusterRef.of(design))
    except UserError:
        return
    try:
        yield from list(storage_findings(project_account, design))
    except UserError as error:
        yield warns("storage", f"could not be asked for: {error}", "Nothing is known about it.")


def ssh_programs(access: Access) -> Iterable[Finding]:
    """Check what SSH access to the login machine needs on this machine."""
    yield from diagnosis.client()
    if access.mode == "iap":
        yield from diagnosis.installed(("gcloud", "which Identity-Aware Proxy needs", pages.GCLOUD))
    yield diagnosis.own_key()


# Compares a project's quotas with what a design can use, and checks that its zones have its GPUs.

EVERYWHERE = {"CPUS": "CPUS_ALL_REGIONS", "GPUS": "GPUS_ALL_REGIONS"}
"""The quotas of the whole project; those of a region exist besides."""
ADDRESSES = "STATIC_ADDRESSES"
DISKS = "SSD_TOTAL_GB"
"""The quota of SSDs, which also counts balanced disks."""
OWN_CPUS = {"n2", "n2d", "c2", "c2d", "c3", "h3", "m1", "m2", "a2"}
"""Families of machine types whose vCPUs have their own quota; the others share one."""


BUILT_IN = {
    "a100": "nvidia-tesla-a100",
    "a100_80gb": "nvidia-a100-80gb",
    "h100_80gb": "nvidia-h100-80gb",
    "h100_mega_80gb": "nvidia-h100-mega-80gb",
    "l4": "nvidia-l4",
}
"""Google's names of the GPUs that are part of a machine type (`gcloud compute accelerator-types list`)."""


def gpu(partition: Partition) -> str | None:
    """Google's name of a partition's GPUs; `None` if it has none or of an unknown kind."""
    if partition.accelerator is None:
        return None
    found = catalog().attachable_to(partition.instance_type, partition.accelerator.type)
    return found.name if found is not None else BUILT_IN.get(partition.accelerator.type)


def of_machine(kind: str, vcpus: int, disk_gib: int, devices: str = "", count: int = 0) -> Counter[str]:
    """Return what one machine uses of each quota.

    Args:
        devices: The name of its GPUs in quotas.
        count: The number of its GPUs.
    """
    family = kind.partition("-")[0]
    used = Counter({f"{family.upper()}_CPUS" if family in OWN_CPUS else "CPUS": vcpus})
    used += Counter({EVERYWHERE["CPUS"]: vcpus, DISKS: disk_gib})
    return used + Counter({devices: count, EVERYWHERE["GPUS"]: count} if devices else {})


def of_host(host: Host) -> Counter[str]:
    """Return what a host uses.

    Facts that only the stack file gives are in the design for nodes alone, so the vCPUs of such a host are
    not counted.
    """
    facts = catalog().machines.get(host.instance_type)
    public = Counter({ADDRESSES: int("public" in host.tags)})
    return of_machine(host.instance_type, facts.vcpus if facts else 0, host.disk_gib) + public


def of_node(partition: Partition) -> Counter[str]:
    """Return what a node of a partition uses."""
    name, devices, count = gpu(partition), "", 0
    if name is not None and partition.accelerator is not None:
        model = name.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
        devices = f"{'PREEMPTIBLE_' if partition.spot else ''}NVIDIA_{model}_GPUS"
        count = partition.accelerator.count
    return of_machine(partition.instance_type, partition.cpus, partition.disk_gib, devices, count)


def _served(design: ClusterDesign) -> int:
    """Return the GiB of the controller's file systems. An existing disk counts already."""
    mounts = [mount for mount in design.mounts if mount.served_by == "controller" and mount.existing is None]
    return sum(mount.size_gib or 0 for mount in mounts)


def wanted_quotas(design: ClusterDesign) -> dict[str, Wanted]:
    """Return what the cluster uses of each quota of its region and of its project."""
    found: dict[str, Wanted] = {DISKS: Wanted(_served(design), _served(design))}
    machines = [(of_host(host), 1, 1) for host in design.hosts]
    machines += [(of_node(partition), partition.min, partition.max) for partition in design.partitions]
    for uses, always, most in machines:
        for metric, count in uses.items():
            found[metric] = found.get(metric, Wanted()) + Wanted(count * always, count * most)
    return {metric: count for metric, count in found.items() if count.most}


def quota_findings(account: Account, design: ClusterDesign) -> Iterator[Finding]:
    """Find the quotas that are too small, and zones without the wanted GPUs. All calls are read-only.

    Raises:
        UserError: Google Cloud does not answer, or refuses.
    """
    try:
        region = account.call("GET", "compute", f"projects/{{project}}/regions/{design.region}")
        project = account.call("GET", "compute", "projects/{project}")
        used = _own(account, design)
    except GoogleError as error:
        if error.reason != "SERVICE_DISABLED":
            raise
        yield from_error(QUOTAS, error)
        return
    yield from compare(_quotas(design, region, project, used), "they are enough for every node")
    for partition in design.partitions:
        yield from _gpus(account, design, partition)


def _quotas(
    design: ClusterDesign, region: Mapping[str, Any], project: Mapping[str, Any], used: Counter[str]
) -> Iterator[Quota]:
    limits = {str(quota.get("metric")): quota for quota in region.get("quotas", [])}
    everywhere = {str(quota.get("metric")): quota for quota in project.get("quotas", [])}
    for metric, count in sorted(wanted_quotas(design).items()):
        of_project = metric in EVERYWHERE.values()
        known = (everywhere if of_project else limits).get(metric)
        if known is None:
            continue
        limit, usage = (float(str(known.get(key, 0))) for key in ("limit", "usage"))
        where = "for the whole project" if of_project else f"in {design.region}"
        increase = functools.partial("{1} of {0} in the console under IAM & Admin, Quotas".format, metric)
        yield Quota(f"{metric} {where}", "", limit, max(0.0, usage - used[metric]), count, increase)


def _own(account: Account, design: ClusterDesign) -> Counter[str]:
    """Return what the cluster uses already, if it is up: Google counts that as used, too."""
    used: Counter[str] = Counter()
    hosts = {host.name: host for host in design.hosts}
    for found in machines.listed(account, design.name):
        name = machines.machine(found, design.name).name
        if name in hosts:
            used += of_host(hosts[name])
            used[DISKS] += _served(design) if hosts[name].role == "controller" else 0
        elif (partition := design.partition_of(name)) is not None:
            used += of_node(partition)
    return used


def _gpus(account: Account, design: ClusterDesign, partition: Partition) -> Iterator[Finding]:
    """Whether the partition's zones have its GPUs; no data source of Pulumi knows that."""
    name = gpu(partition)
    for zone in (partition.zones or design.network.zones or (str(design.zone),)) if name else ():
        try:
            account.call("GET", "compute", f"projects/{{project}}/zones/{zone}/acceleratorTypes/{name}")
        except GoogleError as error:
            if error.status != 404:
                raise
            found = f"partition {partition.name}: zone {zone} has no {name}"
            line = f"gcloud compute accelerator-types list --filter=name={name}"
            yield stops("gpus", found, f"Take a zone that has some: `{line}` lists them.")
        else:
            yield fine("gpus", f"zone {zone} has {name}")


# Looks up the disks, instances and snapshots that a stack file names, before anything is made.

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
        elif mount.keep and (found := _kept_before(account, design, mount)):
            yield found
        elif mount.restore is not None:
            yield from _snapshot(account, design, mount)
    if design.backup is not None:
        name = design.backup.place()[0].removeprefix("gs://")
        yield _bucket(account, "controller.backup.bucket", name, "gets the backups", limited=True)
    for source, name in _fetched(design).items():
        yield _bucket(account, source, name, "is read", limited=True)


def _fetched(design: ClusterDesign) -> dict[str, str]:
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
        found = f"{where}: there is no disk {name} in {design.zone} of {account.project}"
        return stops(STORAGE, found, "A disk can be used in its own zone only: correct the name or gcp:zone.")
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
    found = (
        f"{_key(mount, 'keep')}: the {kind} {name} is there already, from an earlier cluster {design.name}"
    )
    whole = f"projects/{account.project}/{path}" if mount.deployment in REGIONAL else name
    return stops(STORAGE, found, f"Write existing: {whole} to have its files again, or delete it.")


def _filestore_instance(design: ClusterDesign, mount: Mount, name: str) -> str:
    place = design.region if mount.deployment in REGIONAL else design.zone
    return f"locations/{place}/instances/{name}"


def _filestore(account: Account, design: ClusterDesign, mount: Mount) -> Finding:
    name, where = str(mount.existing), _key(mount)
    path = name if "/" in name else f"{COMPUTE}/locations/{design.zone}/instances/{name}"
    instance = _get(account, "file", path)
    if instance is None:
        found = f"{where}: there is no Filestore instance {path.format(project=account.project)}"
        cure = "`gcloud filestore instances list` shows yours; one of a region needs its whole path."
        return stops(STORAGE, found, cure)
    networks = [short(str(network.get("network", ""))) for network in instance.get("networks", [])]
    if design.network.vpc not in networks:
        found = f"{where}: {name} is in the network {', '.join(networks)}, not in {design.network.vpc}"
        return stops(STORAGE, found, "Write its network as network.gcp: it is mounted from there only.")
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
        found = f"{where}: there is no snapshot {name} in {account.project}"
        yield stops(STORAGE, found, "`gcloud compute snapshots list` shows yours.")
        return
    size = int(snapshot.get("diskSizeGb", 0))
    if snapshot.get("status") != "READY":
        yield stops(STORAGE, f"{where}: {name} is {snapshot.get('status')}", "Wait until it is READY.")
    elif size > (mount.size_gib or 0):
        found = f"{where}: {name} has {size} GiB, and {mount.path} {mount.size_gib} GiB"
        yield stops(STORAGE, found, f"Write size_gib: {size}, or more.")
    else:
        yield fine(STORAGE, f"{where}: {mount.path} begins with the files of {name} ({size} GiB)")
