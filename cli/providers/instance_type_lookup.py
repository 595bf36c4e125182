"""Asks a cloud about instance types that the project's table lacks.

Only commands that use the cloud anyway do so: `up` asks about unknown types, `doctor` also about types that
were asked about before. The answers are kept (`infra.instance_types.cache`), so that `plan`, which asks no
cloud, and the program that the engine runs see the same facts. Facts that the stack file gives are never
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cli.providers import provider as providers
from infra.clouds.commands import ClusterRef
from infra.config import ConfigError, provider_settings, stack_file
from infra.config.rules.instance_types import is_arm
from infra.errors import UserError
from infra.instance_types import cache
from infra.instance_types.catalog import Catalog, Described, InstanceType, catalog
from infra.program.stack import Stack
from node.system import plurals

LABELS = {"aws": "AWS", "gcp": "Google Cloud"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lookup has found.

    Attributes:
        known: A sentence for each type that is known now.
        unknown: A sentence for each type that is still unknown, with the reason.
    """

    known: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def look_up_missing(stack: Stack, *, again: bool = False) -> Answer:
    """Ask the stack's cloud for the missing facts of its instance types, and keep them.

    A stack file that cannot be read is no error here: the command that reads it next reports its mistakes.

    Args:
        again: Whether to ask about types, too, whose facts are already kept.
    """
    cluster, place, provider = _read(stack)
    if place is None:
        return Answer()
    facts = catalog()
    wanted: dict[str | None, set[str]] = {}
    for name, zone in _names(cluster):
        if _asked_for(name, facts, provider, place, again):
            wanted.setdefault(zone if provider == "gcp" and zone else place.zone, set()).add(name)
    answers = [_ask(provider, replace(place, zone=zone), sorted(names)) for zone, names in wanted.items()]
    return Answer(
        tuple(dict.fromkeys(line for answer in answers for line in answer.known)),
        tuple(dict.fromkeys(line for answer in answers for line in answer.unknown)),
    )


def _ask(provider: str, place: ClusterRef, names: list[str]) -> Answer:
    label, types = LABELS[provider], ", ".join(names)
    try:
        answer = providers.cloud(provider).describe(place, names)
    except UserError as error:
        return Answer(unknown=(f"{label} could not be asked about {types}: {error}",))
    try:
        _keep(answer, catalog())
    except OSError as error:
        return Answer(unknown=(f"the facts of {types} could not be kept: {error}",))
    where = place.zone or place.region
    return Answer(
        known=tuple(
            f"{label} says of {name}: {_in_words(machine)}" for name, machine in answer.machines.items()
        ),
        unknown=tuple(
            [f"{name} cannot be used: {machine.why}" for name, machine in answer.unusable.items()]
            + [
                f"{label} has no instance type {name} in {where}"
                for name in names
                if name not in answer.machines and name not in answer.unusable
            ]
        ),
    )


def _read(stack: Stack) -> tuple[dict[str, Any], ClusterRef | None, str]:
    """Return the section on the cluster, its location (`None` if no cloud can be asked), and its provider."""
    try:
        values = stack_file.all_values(stack.file, stack.project)
        settings = provider_settings.of_file(stack.file, stack.project)
        cluster = values[f"{stack_file.NAMESPACE}:cluster"]
        provider = cluster["provider"]
        zone = values.get("gcp:zone")
        region = values["aws:region"] if provider == "aws" else str(zone).rpartition("-")[0]
        more = {"zone": zone, "project": values["gcp:project"]} if provider == "gcp" else {}
        location = [region, *more.values()]
    except (ConfigError, AttributeError, KeyError, TypeError):
        return {}, None, ""
    if provider not in LABELS or not all(isinstance(value, str) and value for value in location):
        return {}, None, ""
    return (
        cluster,
        ClusterRef(str(cluster.get("name") or stack.name), region, provider_settings=settings, **more),
        provider,
    )


def _names(cluster: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield the instance types that a file names and does not describe, with their partitions' zones."""
    described = cluster.get("instance_types")
    own_types = described if isinstance(described, dict) else {}
    batch = cluster.get("batch")
    types = batch.get("instance_types") if isinstance(batch, dict) else None
    partitions = cluster.get("partitions")
    sections = [cluster.get("controller"), cluster.get("login")]
    sections += partitions if isinstance(partitions, list) else []
    named = [
        (section.get("instance_type"), section.get("zones"))
        for section in sections
        if isinstance(section, dict)
    ]
    named += [(name, None) for name in (types if isinstance(types, list) else [])]
    for name, zones in named:
        facts = own_types.get(name) if isinstance(name, str) else None
        if isinstance(name, str) and name and not (isinstance(facts, dict) and "vcpus" in facts):
            first = zones[0] if isinstance(zones, list) and zones else None
            yield name, first if isinstance(first, str) else None


def _asked_for(name: str, facts: Catalog, provider: str, place: ClusterRef, again: bool) -> bool:
    """Return whether to ask about a type: it is unknown, or its facts are of another region or old."""
    if name in facts.retired or is_arm(name, provider):
        return False
    machine = facts.instance_type(name)
    if machine is None:
        series = facts.series.get(name.partition("-")[0]) if provider == "gcp" else None
        refused = facts.unusable.get(name)
        return not (series and series.unusable) and (refused is None or (again and refused.asked))
    return machine.asked and machine.provider == provider and (again or not facts.offered(name, place.region))


def _keep(answer: Described, facts: Catalog) -> None:
    machines: dict[str, Any] = {}
    for name, machine in answer.machines.items():
        before = facts.instance_type(name)
        regions = {*(machine.regions or ()), *((before.regions or ()) if before else ())}
        machines[name] = machine.model_dump(mode="json", exclude_defaults=True) | {"regions": sorted(regions)}
    unusable = {name: machine.model_dump(mode="json") for name, machine in answer.unusable.items()}
    cache.keep({"machines": machines, "unusable": unusable})


def _in_words(machine: InstanceType) -> str:
    parts = [f"{machine.vcpus} vCPUs", f"{machine.memory_mib} MiB"]
    if machine.accelerator:
        parts.append(f"{machine.accelerator.count} × {machine.accelerator.type}")
    if machine.efa:
        cards = plurals.count(machine.network_cards, "network card")
        parts.append(f"{plurals.count(machine.efa, 'EFA interface')} on {cards}")
    if machine.nvme_gib:
        parts.append(f"{machine.nvme_gib} GiB of NVMe")
    return f"{', '.join(parts)}; its price is not known"
