"""Reads EC2's description of instance types into machine facts.

Two users share it: `tools/instance_types.py`, which makes the table that comes with the project, and
`./cluster up`, which asks EC2 about types that the table lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from infra.instance_types.catalog import Described, InstanceType, Unusable
from operations.aws.account import explained

GB, GIB = 10**9, 2**30
ACCELERATED = re.compile(r"(p|gr?|inf|trn|dl)[0-9]")
"""Matches the types of families that have accelerators."""
NEURON_V1 = "inferentia"
"""The first generation, which AWS's driver does not support from 2.25 on (awsdocs-neuron, announcements)."""
BATCH = 100
"""The number of types in one DescribeInstanceTypes call."""


def ask(ec2: Any, region: str, names: Iterable[str]) -> Described:
    """Ask EC2 about types. Types that it does not offer in the region are in neither part of the result.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    wanted = sorted(set(names))
    described: list[Mapping[str, Any]] = []
    for first in range(0, len(wanted), BATCH):
        # A filter is used, because EC2 refuses a call with one unknown name in `InstanceTypes`.
        of_these = [{"Name": "instance-type", "Values": wanted[first : first + BATCH]}]
        with explained():
            for page in ec2.get_paginator("describe_instance_types").paginate(Filters=of_these):
                described += page["InstanceTypes"]
    return parse(described, (region,))


def parse(described: Iterable[Mapping[str, Any]], regions: tuple[str, ...] | None = None) -> Described:
    """Parse DescribeInstanceTypes' answer.

    Args:
        regions: The regions that offer all of these types; `None` if they are not known.
    """
    machines: dict[str, InstanceType] = {}
    unusable: dict[str, Unusable] = {}
    for machine_type in described:
        name = str(machine_type["InstanceType"])
        if why := _refused(name, machine_type):
            unusable[name] = Unusable(provider="aws", why=why)
        else:
            machines[name] = InstanceType.model_validate({**read(machine_type), "regions": regions})
    return Described(machines=machines, unusable=unusable)


def read(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a type's facts, without those that have their default."""
    network = described["NetworkInfo"]
    disks = described.get("InstanceStorageInfo", {})
    nvme = disks.get("TotalSizeInGB", 0) if disks.get("NvmeSupport", "unsupported") != "unsupported" else 0
    fields: dict[str, Any] = {
        "provider": "aws",
        "vcpus": described["VCpuInfo"]["DefaultVCpus"],
        "memory_mib": described["MemoryInfo"]["SizeInMiB"],
    }
    rest = {
        "accelerator": accelerator(described),
        "placement": "cluster" in described["PlacementGroupInfo"]["SupportedStrategies"],
        "network_cards": network["MaximumNetworkCards"],
        "efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "nvme_gib": nvme * GB // GIB,
        "previous_generation": not described["CurrentGeneration"],
        "spot": "spot" in described["SupportedUsageClasses"],
    }
    usual = InstanceType(provider="aws", vcpus=1, memory_mib=1)
    return fields | {key: value for key, value in rest.items() if value != getattr(usual, key)}


def accelerator(described: Mapping[str, Any]) -> dict[str, Any] | None:
    """NVIDIA's whole GPUs or AWS's own accelerators; this project installs drivers for no others."""
    gpus = [gpu for gpu in described.get("GpuInfo", {}).get("Gpus", []) if gpu["Manufacturer"] == "NVIDIA"]
    devices = described.get("NeuronInfo", {}).get("NeuronDevices", [])
    for device in (*gpus, *devices):
        if device["Count"]:
            return {"type": device["Name"].lower().replace(" ", "_"), "count": device["Count"]}
    return None


def _refused(name: str, described: Mapping[str, Any]) -> str | None:
    """Why this type cannot be used; `None` if it can."""
    processors = described["ProcessorInfo"]["SupportedArchitectures"]
    if "x86_64" not in processors:
        return f"its processors are {' and '.join(processors)}, and this project's software is for x86-64"
    if "hvm" not in described["SupportedVirtualizationTypes"]:
        return "it does not start Ubuntu's image, which is of type HVM"
    gpus = described.get("GpuInfo", {}).get("Gpus", [])
    if any(gpu["Count"] == 0 for gpu in gpus):
        return "it has a part of a GPU only, which needs NVIDIA's licensed GRID driver"
    wanted = accelerator(described)
    if wanted and wanted["type"] == NEURON_V1:
        return "AWS's driver of today does not know Inferentia of the first generation: take inf2"
    if wanted is None and ACCELERATED.match(name):
        return "EC2 names no accelerators of it for which machines here get a driver"
    cards = described["NetworkInfo"].get("NetworkCards", [])
    if described["NetworkInfo"].get("EfaSupported") and "efa" not in (
        cards[0].get("InterfaceTypes") or ["efa"]
    ):
        return (
            "its first network card takes no EFA interface, and the launch templates here begin with that one"
        )
    return None
