"""Compares a project's quotas with what a design can use, and checks that its zones have its GPUs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cli.findings import Finding, fine, from_error, stops
from cli.providers.clouds.quotas import QUOTAS, Quota, Wanted
from cli.providers.clouds.quotas import quota_findings as compare
from infra.instance_types.catalog import catalog
from node.design.model import ClusterDesign, Host, Partition
from operations.gcp import machines
from operations.gcp.account import Account, GoogleError

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
    attachable = catalog().attachable_to(partition.instance_type, partition.accelerator.type)
    return attachable.name if attachable is not None else BUILT_IN.get(partition.accelerator.type)


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
    by_metric: dict[str, Wanted] = {DISKS: Wanted(_served(design), _served(design))}
    machines = [(of_host(host), 1, 1) for host in design.hosts]
    machines += [(of_node(partition), partition.min, partition.max) for partition in design.partitions]
    for uses, always, most in machines:
        for metric, count in uses.items():
            by_metric[metric] = by_metric.get(metric, Wanted()) + Wanted(count * always, count * most)
    return {metric: count for metric, count in by_metric.items() if count.most}


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
    for described in machines.listed(account, design.name):
        name = machines.machine(described, design.name).name
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
            problem = f"partition {partition.label}: zone {zone} has no {name}"
            line = f"gcloud compute accelerator-types list --filter=name={name}"
            yield stops("gpus", problem, f"Take a zone that has some: `{line}` lists them.")
        else:
            yield fine("gpus", f"zone {zone} has {name}")
