"""docs/aws.md has the figures that `plan` shows, the quotas that the stacks need, and keys that exist."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml

from infra import config
from infra.config import StackConfig
from infra.cost import cost
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import AwsSettings, ClusterDesign
from tests.support.checkout import ROOT

TEXT = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")
STACKS = ("aws-cpu", "aws-gpu")
# EC2's families of one quota each.
STANDARD, P, G = "L-1216C47A", "L-417A185B", "L-DB2E81BA"


def stack(name: str) -> ClusterDesign:
    return design(config.load_file(ROOT / f"Pulumi.{name}.yaml"), catalog())


def row(start: str) -> list[str]:
    (line,) = [line for line in TEXT.splitlines() if line.strip().startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


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
    for cell, price in zip(row(f"`{name}` | 0")[1:], ("idle_usd_per_hour", "max_usd_per_hour"), strict=True):
        assert cell == f"{found[price]:.2f} USD"  # type: ignore[literal-required]


def test_the_quotas_are_what_the_stacks_may_use() -> None:
    wanted: dict[str, list[int]] = {STANDARD: [], P: [], G: []}
    for name in STACKS:
        made = stack(name)
        machines = [(host.instance_type, 1) for host in made.hosts]
        machines += [(partition.instance_type, partition.max) for partition in made.partitions]
        used = dict.fromkeys(wanted, 0)
        for machine, count in machines:
            code = {"p": P, "g": G}.get(machine[0], STANDARD)
            used[code] += catalog().machines[machine].vcpus * count
        for code, number in used.items():
            wanted[code].append(number)
    for code, numbers in wanted.items():
        (cells,) = re.findall(rf"\| {code} \| (\S+) \| (\S+) \|", TEXT)
        assert [0 if cell == "–" else int(cell) for cell in cells] == numbers, code
    assert f"--desired-value {wanted[P][1]} " in TEXT


def test_the_blocks_of_yaml_are_taken_by_the_stack_file() -> None:
    t4, trying, linked = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)
    for block, partition in (("{}", "compute"), (t4, "t4")):
        repeated = changed("aws-gpu", block).benchmark
        assert repeated is not None
        assert (repeated.profile, repeated.partition, repeated.gpus_per_node) == ("published", partition, 1)
    training = changed("aws-gpu", trying).benchmark
    assert training is not None
    assert (training.partition, training.nodes) == ("t4", 1)
    scratch = changed("aws-gpu", linked).cluster.storage.scratch
    assert scratch is not None
    assert scratch.s3_export == "s3://data/out"


def test_what_two_of_the_large_nodes_cost() -> None:
    (part,) = [p for p in cost(stack("aws-gpu"))["parts"] if "p3dn" in p["what"]]
    assert part["max"] is not None
    assert f"{part['max'] / 8 * 2:.0f} USD an hour while they are up" in TEXT.replace("\n", " ")


def test_what_it_costs_without_a_nat_gateway() -> None:
    made = stack("aws-cpu")
    without = dataclasses.replace(made, aws=AwsSettings(nat=False))
    figures = [f"{cost(one)['idle_usd_per_hour']:.2f}" for one in (without, made)]
    assert "idles at {} USD an hour instead of {}".format(*figures) in TEXT
