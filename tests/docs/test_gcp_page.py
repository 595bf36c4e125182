"""docs/gcp.md and docs/choosing.md have the figures that `plan` shows, the quotas, and keys that exist."""

from __future__ import annotations

import re

import pytest
import yaml

from cli.providers.gcp.quotas import EVERYWHERE, wanted_quotas
from infra import config
from infra.config import StackConfig
from infra.cost import cost
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import ClusterDesign
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "gcp.md").read_text(encoding="utf-8")
CHOOSING = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
STACKS = ("gcp-cpu", "gcp-gpu")


def stack(name: str) -> ClusterDesign:
    return design(config.load_file(ROOT / f"Pulumi.{name}.yaml"), catalog())


def row(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def changed(name: str, text: str) -> StackConfig:
    """Return a stack file in which a block of the page replaces the file's own."""
    whole = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())
    for key, value in yaml.safe_load(text).items():
        part = whole["config"] if key in whole["config"] else whole["config"]["slurm-stacks:cluster"]
        part[key] = {**part.get(key, {}), **value} if isinstance(value, dict) else value
    return config.parse(whole["config"], name)


@pytest.mark.parametrize("name", STACKS)
def test_the_prices_are_the_plans(name: str) -> None:
    found = cost(stack(name))
    for cell, price in zip(
        row(PAGE, f"`{name}` | 0")[1:], ("idle_usd_per_hour", "max_usd_per_hour"), strict=True
    ):
        assert cell == f"{found[price]:.2f} USD"  # type: ignore[literal-required]


def test_the_quotas_are_what_the_stacks_may_use() -> None:
    needs = [wanted_quotas(stack(name)) for name in STACKS]
    for metric in {metric for need in needs for metric in need} - {"CPUS_ALL_REGIONS"}:
        _, where, *cells = row(PAGE, metric)
        assert where == ("project" if metric in EVERYWHERE.values() else "region")
        assert [0 if cell == "–" else int(cell) for cell in cells] == [
            need[metric].most if metric in need else 0 for need in needs
        ]


def test_the_blocks_of_yaml_are_taken_by_the_stack_file() -> None:
    trying, two, scratch, baked, hardware = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    training = changed("gcp-gpu", trying).benchmark
    assert training is not None
    assert (training.partition, training.nodes) == ("debug", 1)
    (partition,) = changed("gcp-gpu", two).cluster.partitions
    assert partition.accelerator is not None
    assert partition.accelerator.count == 2
    assert changed("gcp-cpu", scratch).cluster.storage.scratch is not None
    assert changed("gcp-cpu", baked).cluster.image.bake
    (faster,) = changed("gcp-cpu", hardware).cluster.partitions
    assert faster.gcp is not None
    assert (faster.gcp.disk_type, faster.gcp.min_cpu_platform) == ("pd-ssd", "Intel Skylake")


def test_what_one_can_decide_from_is_what_plans_say() -> None:
    plans = {name: cost(stack(name)) for name in ("aws-cpu", "gcp-cpu", "aws-gpu", "gcp-gpu")}
    for line, kind, price in (
        ("an hour idle, CPU stack", "cpu", "idle_usd_per_hour"),
        ("an hour with every node, CPU stack", "cpu", "max_usd_per_hour"),
        ("an hour idle, GPU stack", "gpu", "idle_usd_per_hour"),
        ("an hour with every node, GPU stack", "gpu", "max_usd_per_hour"),
    ):
        _, aws, gcp, _ = row(CHOOSING, line)
        assert aws.startswith(f"{plans[f'aws-{kind}'][price]:.2f} USD"), line  # type: ignore[literal-required]
        assert gcp.startswith(f"{plans[f'gcp-{kind}'][price]:.2f} USD"), line  # type: ignore[literal-required]
    facts = catalog()
    v100 = facts.price("n1-standard-2", "europe-west4", accelerator=("v100", 1))
    p3dn = facts.price("p3dn.24xlarge", "eu-west-1")
    t4 = facts.price("n1-standard-4", "europe-west4", accelerator=("t4", 1))
    assert v100 is not None and p3dn is not None and t4 is not None  # noqa: PT018
    assert row(CHOOSING, "a node with V100s")[1:3] == [
        f"{p3dn:.2f} USD: p3dn.24xlarge, 8 × V100 32 GB", f"{v100:.2f} USD: n1-standard-2, 1 × V100 16 GB",
    ]  # fmt: skip
    assert row(CHOOSING, "one V100, an hour")[1:3] == [f"{p3dn / 8:.2f} USD", f"{v100:.2f} USD"]
    assert row(CHOOSING, "one T4, an hour")[2].startswith(f"{t4:.2f} USD")
    for region in facts.machines["p3dn.24xlarge"].regions or ():
        assert region in row(CHOOSING, "where V100s are")[1]
    zones = facts.attachable["v100"].zones
    regions = {zone.rpartition("-")[0] for zone in zones}
    assert {region for region in regions if region not in row(CHOOSING, "where V100s are")[2]} == set()
