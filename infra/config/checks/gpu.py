"""Checks of what nodes with NVIDIA's GPUs get besides the driver."""

from __future__ import annotations

import re

from infra.config.checks.containers import check_packages
from infra.config.checks.context import CLUSTER, MISSING, Context
from infra.config.cluster import PartitionConfig
from infra.instance_types.catalog import GRES

NEEDED = ("gdrdrv-dkms", "libgdrapi")
ALSO = ("gdrcopy", "gdrcopy-tests")
PAGE = "https://developer.download.nvidia.com/compute/redist/gdrcopy/"


def check_gpu(c: Context) -> None:
    gdrcopy = c.cluster.gpu.gdrcopy if c.cluster.gpu is not None else None
    if gdrcopy is None:
        return
    at = (*CLUSTER, "gpu", "gdrcopy")
    if c.provider == "local" or c.cluster.scheduler == "batch":
        local = c.provider == "local"
        where = "on the local stack, which simulates GPUs" if local else "with scheduler batch"
        c.add(at, "a value", f"nothing {where}", "remove it")
        return
    if not any(_has_gpus(c, partition) for partition in c.cluster.partitions):
        c.add(at, "a value", "nothing where no partition has NVIDIA's GPUs", "remove it")
    for index, partition in enumerate(c.cluster.partitions):
        if partition.gcp is not None and partition.gcp.secure_boot and _has_gpus(c, partition):
            c.add(
                (*CLUSTER, "partitions", index, "gcp", "secure_boot"),
                True,
                "false with gpu.gdrcopy",
                "its kernel module is built on the node, and Secure Boot loads signed ones only",
            )
    check_packages(c, gdrcopy.packages, (*at, "packages"))
    names = [_name(package.source) for package in gdrcopy.packages]
    for index, name in enumerate(names):
        if name not in (*NEEDED, *ALSO) or name in names[:index]:
            source = gdrcopy.packages[index].source
            names_of = ", ".join((*NEEDED, *ALSO))
            allowed = f"one file of each of {names_of}, named as NVIDIA does: <name>_<version>_….deb"
            c.add((*at, "packages", index, "source"), source, allowed, PAGE)
    for name in NEEDED:
        if name not in names:
            c.add((*at, "packages"), MISSING, f"a package {name}_….deb beside the others", PAGE)


def _name(source: str) -> str:
    """The name of the package in a file `gdrdrv-dkms_2.6-1_amd64.Ubuntu24_04.deb`."""
    return re.split(r"[_/]", source.rpartition("/")[2])[0]


def _has_gpus(c: Context, partition: PartitionConfig) -> bool:
    machine = c.instance_type(partition.instance_type)
    chosen = partition.accelerator or (machine.accelerator if machine is not None else None)
    return chosen is not None and GRES.get(chosen.type, "gpu") == "gpu"
