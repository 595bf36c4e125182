"""Types and names of resources, which are in every stack's state and in what `plan` shows: a contract.

`contract/resource_names.txt` and docs/reference/resource_names.md list them all, which `--update-snapshots`
writes anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands.operate import make_plan
from infra.config import load_file
from infra.program.stack import Stack
from tests.support import aws_plans, gcp_plans, shipped
from tests.support.checkout import ROOT

FILE = Path(__file__).parent / "contract" / "resource_names.txt"
PAGE = ROOT / "docs" / "reference" / "resource_names.md"
LISTED = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
"""The page's list, for programs that transform resources."""
SHIPPED = shipped.stacks()
EDITED = {
    aws_plans.command: (aws_plans.INSTALLING, aws_plans.BY_EVENTS, aws_plans.POOLED),
    gcp_plans.command: (gcp_plans.SSH, gcp_plans.RICH, gcp_plans.POOLED),
}
"""Stack files with resources that no shipped one has, and the functions that plan them."""
PREFIX = "slurm-stacks:index:"
PROVIDERS = re.compile("^(Aws|Batch|Gcp|Local|Slurm)")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The plans of all shipped stack files, and of some edited ones."""
    files = [ROOT / f"Pulumi.{stack}.yaml" for stack in SHIPPED]
    made = [dict(make_plan(Stack(ROOT, file.name[7:-5]), load_file(file))) for file in files]
    for command, subjects in EDITED.items():
        for subject in subjects:
            made.append(json.loads(command(subject, tmp_path_factory.mktemp("stack")).stdout))
    return made


def resources(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the plan's resources below the stack itself."""
    return (resource for resource in plan["resources"] if resource["parent"] is not None)


def general(plan: dict[str, Any], resource: dict[str, Any]) -> str:
    """Return type and name, with placeholders for the names that the stack file chooses."""
    cluster = plan["outputs"]["cluster"]
    name = resource["name"].removeprefix(cluster["name"])
    for partition in cluster["partitions"]:
        groups = [f"{partition['name']}-{pool['name']}" for pool in partition["pools"]]
        for group in groups or [partition["name"]]:
            name = re.sub(rf"^(-[a-z]+-templates-){group}(?=-|$)", r"\1<partition>", name)
    name = re.sub(r"-user-[0-9a-f]{8}(?=-|$)", "-user-<member>", name)
    return f"{resource['type']} <cluster>{name}"


def test_all_types_and_names_are_as_listed(plans: list[dict[str, Any]], pytestconfig: pytest.Config) -> None:
    found = "".join(
        f"{line}\n"
        for line in sorted({general(plan, resource) for plan in plans for resource in resources(plan)})
    )
    if pytestconfig.getoption("--update-snapshots"):
        FILE.write_text(found)
        PAGE.write_text(LISTED.sub(found, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    assert LISTED.findall(PAGE.read_text(encoding="utf-8")) == [found]
    assert found == FILE.read_text(), (
        "a resource with another type or name is another resource: the engine deletes it and makes a new one"
    )


def test_names_follow_one_scheme(plans: list[dict[str, Any]]) -> None:
    """A part is named after its component, and a component after its class."""
    for plan in plans:
        cluster = plan["outputs"]["cluster"]["name"]
        names = {one["urn"]: one["name"] for one in plan["resources"]}
        for one in resources(plan):
            above = names[one["parent"]]
            if one["type"].startswith(PREFIX):
                words = PROVIDERS.sub("", one["type"].removeprefix(PREFIX))
                role = re.sub("(?<=[a-z])(?=[A-Z])", "-", words).lower()
                assert one["name"] == cluster if role == "cluster" else one["name"].endswith(f"-{role}")
                assert one["name"].startswith(cluster)
            else:
                assert one["name"].startswith(f"{above}-"), f"{one['name']} is a part of {above}"
