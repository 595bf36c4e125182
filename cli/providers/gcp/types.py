"""Reads Compute Engine's description of machine types into machine facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.instance_types.catalog import LOCAL_SSD_GIB, Described, InstanceType, Unusable, series
from operations.gcp.account import Account, GoogleError


def ask(account: Account, zone: str, names: Iterable[str]) -> Described:
    """Ask Compute Engine about types. Types that the zone does not have are in neither part of the result.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    machines: dict[str, InstanceType] = {}
    unusable: dict[str, Unusable] = {}
    for name in sorted(set(names)):
        path = f"projects/{{project}}/zones/{zone}/machineTypes/{name}"
        try:
            described = account.call("GET", "compute", path)
        except GoogleError as error:
            if error.status != 404:
                raise
            continue
        if why := _refused(name, described):
            unusable[name] = Unusable(provider="gcp", why=why)
        else:
            machines[name] = InstanceType.model_validate(
                {**read(name, described), "regions": (zone.rpartition("-")[0],)}
            )
    return Described(machines=machines, unusable=unusable)


def read(name: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return a type's facts from Compute Engine's resource `MachineType`."""
    fields: dict[str, Any] = {
        "provider": "gcp",
        "vcpus": resource["guestCpus"],
        "memory_mib": resource["memoryMb"],
        # Google's list of series without compact placement is short; a new series is expected to have it.
        "placement": series(name).placement,
        "nvme_gib": resource.get("bundledLocalSsds", {}).get("partitionCount", 0) * LOCAL_SSD_GIB,
    }
    for accelerator in resource.get("accelerators", []):
        kind = (
            accelerator["guestAcceleratorType"]
            .removeprefix("nvidia-")
            .removeprefix("tesla-")
            .replace("-", "_")
        )
        fields["accelerator"] = {"type": kind, "count": accelerator["guestAcceleratorCount"]}
    return fields


def _refused(name: str, resource: Mapping[str, Any]) -> str | None:
    if resource.get("architecture", "X86_64") not in ("X86_64", "ARCHITECTURE_UNSPECIFIED"):
        return f"its processors are {resource['architecture']}, and this project's software is for x86-64"
    return series(name).unusable
