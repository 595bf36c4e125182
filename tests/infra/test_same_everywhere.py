"""One description, three providers: the same partitions, node names and slurm.conf, the same outputs.

This file lists the only differences that are allowed: where the machines are, their types' names, and how
they reach each other.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cli.commands.operate import make_plan
from infra import slurm_releases
from infra.config import load_file, parse
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.outputs.fields import SCHEMA
from infra.program import stand_ins
from infra.program.stack import Stack
from infra.providers import create_cluster
from node.design.model import ClusterDesign, Partition, Settings
from node.design.published import parse_settings
from node.slurm import conf
from node.slurm.version import Version, spell
from operations.local.run_directory import RunDirectory
from tests.support.aws_machines import Machines as Aws
from tests.support.aws_mocks import declare as declare_aws
from tests.support.checkout import ROOT
from tests.support.gcp_machines import Machines as Gcp
from tests.support.gcp_mocks import declare as declare_gcp

PLACES: dict[str, dict[str, str]] = {
    "local": {},
    "aws": {"aws:region": "eu-west-1"},
    "gcp": {"gcp:project": "acme-ml", "gcp:zone": "europe-west4-a"},
}
MACHINES = {
    "local": ("local.small", "local.medium"),
    "aws": ("m5.large", "g4dn.xlarge"),
    "gcp": ("n1-standard-2", "n1-standard-4"),
}
"""The instance types of the partitions `cpu` and `gpu`, which differ from cloud to cloud."""
OFFERED = {"europe-west4-a": {"n1-standard-2": 2, "n1-standard-4": 4}}
PROVIDERS = tuple(PLACES)
VERSIONS = ((22, 5), (23, 11), (24, 11))
"""The releases of Slurm in Debian 12, Ubuntu 24.04 and Debian 13."""
ADDRESSES = {"SlurmctldHost", "AccountingStorageHost"}
OF_NAMESPACES = {"TaskPlugin", "SlurmdParameters", "SlurmctldParameters"}
"""Machines of the local stack share the host's CPUs, pretend to have what the design says, and have their
addresses before they boot."""
OF_REAL_DEVICES = {
    "HealthCheckProgram",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "Prolog",
    "PrologFlags",
    "SchedulerParameters",
}
"""The local stack checks the health of devices that it pretends to have only on request."""
OWN = {"machine", "price_usd_per_hour", "accelerator"}
"""The fields of a partition's outputs that differ from provider to provider."""


def facts(provider: str, vcpus: int, gib: int) -> dict[str, int]:
    """Instance types with this many CPUs and this much memory for jobs. A cloud's machine reserves a part of
    its memory, a local machine none."""
    memory = gib * 1024
    return {"vcpus": vcpus, "memory_mib": memory - (400 + 30 * gib) if provider == "local" else memory}


def stack(provider: str) -> dict[str, Any]:
    """Return a stack file that differs only by the names of places and instance types."""
    cpu, gpu = MACHINES[provider]
    cluster: dict[str, Any] = {
        "name": "c",
        "provider": provider,
        "partitions": [
            {
                "name": "cpu",
                "instance_type": cpu,
                "nodes": {"min": 1, "max": 12},
                "default": True,
                "time_limit": "02:00:00",
            },
            {
                "name": "gpu",
                "instance_type": gpu,
                "accelerator": {"type": "t4", "count": 1},
                "nodes": {"min": 0, "max": 4},
                "exclusive": True,
            },
        ],
        "slurm": {
            "suspend_time": 300,
            "suspend_timeout": 120,
            "resume_timeout": 900,
            "slurmd_timeout": 300,
            "reconcile_interval": 10.0,
            # Stacks with GPUs boot Ubuntu 24.04, and have accounting by default where its Slurm is accepted.
            "accept_unmaintained": slurm_releases.table().date.isoformat(),
        },
        "budget": {"max_hours": 100},
        "instance_types": {cpu: facts(provider, 2, 8), gpu: facts(provider, 4, 16)},
    }
    if provider == "local":
        cluster["local"] = {"isolation": "container"}
    return {**PLACES[provider], "slurm-stacks:cluster": cluster}


@functools.cache
def designed(provider: str) -> ClusterDesign:
    return design(parse(stack(provider), "test"), catalog())


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Settings]:
    """Return the settings of the machines of a provider's cluster, from the provider's own code."""

    def of(provider: str) -> Settings:
        cluster = designed(provider)
        if provider == "local":
            run = RunDirectory(tmp_path)
            run.cloud.mkdir()
            return run.settings(cluster)
        declare: Any = declare_aws if provider == "aws" else declare_gcp
        answers = (
            {"aws": Aws(offered={machine: ["eu-west-1a"] for machine in MACHINES["aws"]})}
            if provider == "aws"
            else {"gcp": Gcp(machines=OFFERED)}
        )
        made = declare(lambda: create_cluster(cluster.name, cluster, stand_ins.NONE), **answers)
        (content,) = (made.inputs(name)["content"] for name in made.asked if name.endswith("bundle-settings"))
        return parse_settings(plain(content))

    return of


def plain(value: Any) -> Any:
    """Unwrap the values that providers treat as secret, which the mocks wrap."""
    return value["value"] if isinstance(value, dict) and "value" in value else value


def options(text: str) -> list[str]:
    """Return the lines of a slurm.conf without comments and empty lines."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def unnamed(provider: str, text: str) -> str:
    """Remove the names of instance types, which jobs may request as a feature."""
    for machine, common in zip(MACHINES[provider], ("machine-1", "machine-2"), strict=True):
        text = text.replace(machine, common)
    return text


def differing(one: str, other: str) -> set[str]:
    """Return the keys of the lines that only one of two files has."""
    return {line.partition("=")[0] for line in set(options(one)) ^ set(options(other))}


# --- design -----------------------------------------------------------------------------------------------


def test_partitions_are_the_same_but_for_what_a_machine_is_called_and_costs() -> None:
    """`simulated` tells a job that the local stack's GPUs are not real."""

    def seen(provider: str) -> list[Partition]:
        return [
            replace(
                partition, instance_type="", price_hour=None, disk_gib=0, local_ssds=0, zones=(),
                accelerator=partition.accelerator and replace(partition.accelerator, simulated=False),
            )
            for partition in designed(provider).partitions
        ]  # fmt: skip

    assert seen("aws") == seen("gcp") == seen("local")


def test_nodes_are_called_the_same() -> None:
    names = [f"cpu-{number}" for number in range(12)] + [f"gpu-{number}" for number in range(4)]
    for provider in PROVIDERS:
        assert [node for p in designed(provider).partitions for node in p.nodes()] == names, provider


def test_hosts_limits_and_timers_are_the_same() -> None:
    for provider in PROVIDERS:
        cluster = designed(provider)
        assert [(host.name, host.role) for host in cluster.hosts] == [("controller", "controller")], provider
        assert (cluster.slurm, cluster.budget) == (designed("aws").slurm, designed("aws").budget), provider
        assert [mount.path for mount in cluster.mounts] in (["/home", "/apps"], ["/apps", "/home"]), provider


# --- slurm.conf -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS, ids=[spell(version) for version in VERSIONS])
def test_slurm_is_configured_the_same_but_for_addresses(
    told: Callable[[str], Settings], version: Version
) -> None:
    files = {provider: conf.render(told(provider), version) for provider in PROVIDERS}
    slurm = {provider: unnamed(provider, content["slurm.conf"]) for provider, content in files.items()}
    assert differing(slurm["aws"], slurm["gcp"]) == ADDRESSES
    assert {name: files["aws"][name] for name in ("gres.conf", "cgroup.conf")} == {
        name: files["gcp"][name] for name in ("gres.conf", "cgroup.conf")
    }
    assert differing(slurm["aws"], slurm["local"]) == ADDRESSES | OF_NAMESPACES | OF_REAL_DEVICES


def test_a_description_that_differs_is_seen_to_differ(told: Callable[[str], Settings]) -> None:
    """The comparison does not find everything equal."""
    settings = told("gcp")
    (cpu, gpu) = settings.design.partitions
    other = replace(settings, design=replace(settings.design, partitions=(replace(cpu, max=13), gpu)))
    texts = [conf.render(known, VERSIONS[1])["slurm.conf"] for known in (settings, other)]
    assert differing(*texts) == {"NodeName", "PartitionName"}


# --- outputs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the outputs of each provider's whole program, as its plan shows them."""
    project = tmp_path_factory.mktemp("project")
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copy(ROOT / name, project / name)
    found = {}
    for provider in PROVIDERS:
        file = project / f"Pulumi.{provider}.yaml"
        file.write_text(yaml.safe_dump({"config": stack(provider)}))
        found[provider] = make_plan(Stack(project, provider), load_file(file))["outputs"]
    return found


def test_other_teams_read_the_same_of_each(published: dict[str, dict[str, Any]]) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert set(published["local"]) == set(published["aws"]) == set(published["gcp"])
    for provider, outputs in published.items():
        jsonschema.Draft202012Validator(schema).validate(outputs["cluster"])
        assert outputs["cluster"]["provider"] == provider
    paths = {provider: set(leaves(outputs["cluster"])) for provider, outputs in published.items()}
    assert paths["local"] == paths["aws"] == paths["gcp"]


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields of an output. A list has the paths of its first item."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from leaves(value[0], f"{path}[]")
    else:
        yield path


def test_partitions_read_the_same_but_for_machine_and_price(published: dict[str, dict[str, Any]]) -> None:
    def seen(provider: str) -> list[dict[str, Any]]:
        partitions = published[provider]["cluster"]["partitions"]
        return [{key: p[key] for key in p if key not in OWN} for p in partitions]

    assert seen("aws") == seen("gcp") == seen("local")
    assert {"name", "min", "max", "cpus", "memory_mib", "time_limit"} <= set(seen("aws")[0])
