"""Compares a project's quotas with what a design can use, and checks that its zones have its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from cli.doctor.finding import Finding, Severity, fine, from_message, stops, warns
from cli.gcp.account import Account, GoogleError
from infra.instance_types.catalog import catalog
from node.model import ClusterDesign, Partition

EVERYWHERE = {"CPUS": "CPUS_ALL_REGIONS", "GPUS": "GPUS_ALL_REGIONS"}
"""The quotas of the whole project; those of a region exist besides."""
DISKS = "SSD_TOTAL_GB"
"""The quota of SSDs, which also counts balanced disks."""
OWN_CPUS = {"n2", "n2d", "c2", "c2d", "c3", "m1", "m2", "a2"}
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


def wanted(design: ClusterDesign) -> tuple[dict[str, int], dict[str, int]]:
    """What the cluster uses with every node up, by quota of its region and by quota of its project."""
    here: Counter[str] = Counter()
    everywhere: Counter[str] = Counter()
    # Facts that only the stack file gives are in the design for nodes alone; such hosts are not counted.
    facts = catalog().machines
    machines = [
        (host.instance_type, facts[host.instance_type].vcpus, 1)
        for host in design.hosts
        if host.instance_type in facts
    ]
    machines += [(partition.instance_type, partition.cpus, partition.max) for partition in design.partitions]
    for machine, vcpus, count in machines:
        family = machine.partition("-")[0]
        here[f"{family.upper()}_CPUS" if family in OWN_CPUS else "CPUS"] += vcpus * count
        everywhere[EVERYWHERE["CPUS"]] += vcpus * count
    here[DISKS] += sum(host.disk_gib for host in design.hosts)
    here[DISKS] += sum(partition.disk_gib * partition.max for partition in design.partitions)
    # An existing disk counts already.
    own = [mount for mount in design.mounts if mount.served_by == "controller" and mount.existing is None]
    here[DISKS] += sum(mount.size_gib or 0 for mount in own)
    for partition in design.partitions:
        name = gpu(partition)
        if name is not None and partition.accelerator is not None:
            model = name.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
            spot = "PREEMPTIBLE_" if partition.spot else ""
            here[f"{spot}NVIDIA_{model}_GPUS"] += partition.accelerator.count * partition.max
            everywhere[EVERYWHERE["GPUS"]] += partition.accelerator.count * partition.max
    return dict(here), dict(everywhere)


def findings(account: Account, design: ClusterDesign) -> Iterator[Finding]:
    """The quotas that are too small, and zones without the wanted GPUs. All calls are read-only.

    Raises:
        UserError: Google Cloud does not answer.
    """
    here, everywhere = wanted(design)
    try:
        region = account.call("GET", "compute", f"projects/{{project}}/regions/{design.region}")
        project = account.call("GET", "compute", "projects/{project}")
    except GoogleError as error:
        yield from_message("quotas", Severity.STOPS, str(error))
        return
    short = [*_short(here, region.get("quotas", []), f"in {design.region}")]
    short += _short(everywhere, project.get("quotas", []), "for the whole project")
    yield from short
    if not short:
        yield fine("quotas", "they are enough for every node")
    for partition in design.partitions:
        yield from _gpus(account, design, partition)


def _short(wants: Mapping[str, int], quotas: Iterable[Mapping[str, object]], where: str) -> Iterator[Finding]:
    limits = {str(one.get("metric")): one for one in quotas}
    for metric, count in sorted(wants.items()):
        known = limits.get(metric)
        if known is None:
            continue
        limit, usage = (float(str(known.get(key, 0))) for key in ("limit", "usage"))
        if count > limit - usage:
            found = f"{metric} {where} is {limit:g}, {usage:g} of it used; every node up needs {count}"
            cure = "Ask for more in the console (IAM & Admin, Quotas); until then jobs beyond it wait."
            yield warns(f"quotas.{metric.lower()}", found, cure)


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
