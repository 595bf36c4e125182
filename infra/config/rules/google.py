"""Rules of what only Google Cloud has: its names, disks, networks, platforms and reservations."""

from __future__ import annotations

import re

from infra.config.fields import IN_WORDS, LONGEST_NAME, NAME
from infra.config.rules.context import CLUSTER, Context
from infra.config.storage import SharedStorage
from node.elastic.drivers.gce.names import resource_of

HOST_PREFIXES = ("login-", "image-")
"""Prefixes of the names of machines that are not nodes."""
WITHOUT_STANDARD = ("a3", "c3", "c3d", "g2")
"""Series without pd-standard (Compute Engine's documentation, "Persistent Disk": machine series support)."""
PLATFORMS = {
    "n1": ("Intel Sandy Bridge", "Intel Ivy Bridge", "Intel Haswell", "Intel Broadwell", "Intel Skylake"),
    "n2": ("Intel Cascade Lake", "Intel Ice Lake"),
    "n2d": ("AMD Rome", "AMD Milan"),
}
"""Series -> the platforms that can be asked for (Compute Engine's documentation, "CPU platforms")."""
ONE_PLATFORM = ("e2", "t2d")
"""Series that take no minimum CPU platform."""


def check_google(c: Context) -> None:
    if c.provider != "gcp":
        return
    for step in (_google_names, _google_disks, _google_network, _google_reservations, _google_hardware):
        step(c)


def _google_names(c: Context) -> None:
    """Refuse names that Cloud Storage refuses in a bucket's, and partitions that IAM takes for hosts."""
    if "google" in c.cluster.name or c.cluster.name.startswith("goog"):
        c.add(
            "name.google",
            (*CLUSTER, "name"),
            c.cluster.name,
            "a name that neither holds 'google' nor begins with 'goog'",
            "Cloud Storage refuses such names of buckets",
        )
    for at, partition in c.groups():
        # `login` itself is checked for every cloud.
        if f"{partition.name}-".startswith(HOST_PREFIXES) and partition.name != "login":
            c.add(
                "partition.name-prefix",
                (*at, "name"),
                partition.name,
                f"a name that does not begin with {' or '.join(HOST_PREFIXES)}",
                "by this name IAM tells nodes from login machines and from those that become images",
            )


def _google_disks(c: Context) -> None:
    """Check that a directory's disk has no machine's name, which that machine's disk has."""
    storage, cluster = c.cluster.storage, c.cluster.name
    for key in ("home", "apps", "scratch"):
        part = getattr(storage, key)
        if part is None and key == "scratch":
            continue
        path = (part or SharedStorage()).mounted_at(key)
        if part is not None and part.kind != "nfs":
            continue
        name = resource_of(cluster, path)
        machine = name.removeprefix(f"{cluster}-")
        partition, _, number = machine.rpartition("-")
        nodes = {group.name for _, group in c.groups()}
        where = (*CLUSTER, "storage", key, *(["path"] if part is not None else []))
        if (
            machine == "controller"
            or machine.startswith(HOST_PREFIXES)
            or (partition in nodes and number.isdigit())
        ):
            allowed = "a path that is not spelled like a machine of the cluster"
            c.add(
                "storage.name-of-machine",
                where,
                path,
                allowed,
                f"its disk would be {name}, and so is that of the machine {machine}",
            )


def _google_network(c: Context) -> None:
    network, at = c.cluster.network, (*CLUSTER, "network")
    for key in ("public_cidr", "private_cidr"):
        if getattr(network, key) is not None and network.gcp is None:
            c.add(
                "network.cidr-on-gcp",
                (*at, key),
                getattr(network, key),
                "nothing on Google Cloud: one subnetwork has all of network.cidr",
                f"remove {key}; access.mode says what is public",
            )
    if network.gcp is None:
        return
    for key in ("network", "subnetwork"):
        name = getattr(network.gcp, key)
        if name is not None and (not re.fullmatch(NAME, name) or len(name) > LONGEST_NAME):
            c.add(
                "network.gcp-name",
                (*at, "gcp", key),
                name,
                f"the name of a {key} in gcp:project: {IN_WORDS[NAME]}",
                f"write {name.rpartition('/')[2]}" if "/" in name else "",
            )


def _google_hardware(c: Context) -> None:
    """Refuse disks and processors that the series of a partition's machines does not have."""
    for where, partition in c.groups():
        config, at = partition.gcp, (*where, "gcp")
        if config is None or c.instance_type(partition.instance_type) is None:
            continue
        series = partition.instance_type.partition("-")[0]
        if config.disk_type == "pd-standard" and series in WITHOUT_STANDARD:
            allowed = f"pd-balanced or pd-ssd on {series.upper()} machines"
            c.add(
                "partition.disk-type",
                (*at, "disk_type"),
                config.disk_type,
                allowed,
                "write disk_type: pd-balanced",
            )
        platform = config.min_cpu_platform
        if platform is None:
            continue
        if series in ONE_PLATFORM:
            allowed = f"nothing on {series.upper()} machines, whose processors Google chooses"
            c.add(
                "partition.no-cpu-platform",
                (*at, "min_cpu_platform"),
                platform,
                allowed,
                "leave it out, or take N1, N2 or N2D machines",
            )
        elif platform not in (platforms := PLATFORMS.get(series, (platform,))):
            c.add(
                "partition.cpu-platform",
                (*at, "min_cpu_platform"),
                platform,
                f"one of {', '.join(platforms)} on {series.upper()}",
            )


def _google_reservations(c: Context) -> None:
    """Check reservations: one of Google's is in one zone, and nodes in others cannot use it.

    Nodes with a placement policy of the cluster's own cannot use it either: a reservation takes only the
    policies that it was made with (slurm-gcp removes its own there, in `update_reservation_props`).
    """
    for at, partition in c.groups():
        zones = partition.zones if partition.zones is not None else c.cluster.network.zones
        if partition.reservation is not None and len(set(zones)) > 1:
            c.add(
                "reservation.several-zones",
                (*at, "reservation"),
                partition.reservation,
                "one zone only: the reservation's",
                f"nodes may start in {', '.join(zones)}: give this partition one zone",
            )
        if partition.reservation is not None and partition.placement == "cluster":
            c.add(
                "reservation.placement",
                (*at, "placement"),
                partition.placement,
                "none with a reservation, which has its machines where they are",
                f"remove placement; a policy that {partition.reservation} was made with is named by "
                "gcp: {placement_policy: …}",
            )
        if partition.gcp is None or partition.gcp.placement_policy is None:
            continue
        if partition.reservation is None:
            c.add(
                "placement-policy.no-reservation",
                (*at, "gcp", "placement_policy"),
                partition.gcp.placement_policy,
                "nothing without a reservation: it is the reservation's policy",
                "write placement: cluster for one of the cluster's own",
            )
