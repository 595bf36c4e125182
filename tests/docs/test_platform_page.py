"""docs/platform.md: its examples are accepted, and its numbers are the rules'."""

from __future__ import annotations

import re
from typing import Any

import pulumi
import pytest
import yaml

from infra.config.rules import platform
from tests.support.checkout import ROOT
from tests.support.stack_values import CLUSTER, mistakes, values

TEXT = (ROOT / "docs" / "platform.md").read_text(encoding="utf-8")
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(next(iter(one))) for one in EXAMPLES])
def test_an_example_is_accepted(example: dict[str, Any]) -> None:
    stack = "gcp" if "gcp" in str(example) else "aws"
    changed = values(stack)
    changed[CLUSTER] = {**changed[CLUSTER], **example}
    assert mistakes(changed) == []


def test_there_is_an_example_of_each_section() -> None:
    assert {key for example in EXAMPLES for key in example} == {"tags", "aws", "partitions", "slurm"}
    assert sum("overrides" in str(example) for example in EXAMPLES) == 2


def test_the_numbers_are_the_rules() -> None:
    (row,) = re.findall(r"^\| how many \| (\d+): .* \| (\d+) of 64 \|$", TEXT, re.M)
    assert row == (str(platform.MOST_TAGS), str(platform.MOST_LABELS))
    assert all(f"`{key}`" in TEXT for key in platform.OF_IMAGE_BUILDER)


def test_the_transform_changes_what_it_says() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    props = {"name": "/slurm-stacks/c", "retentionInDays": 30}

    def transformed(kind: str) -> Any:
        args = pulumi.ResourceTransformArgs(True, kind, "c-logs-group", props, pulumi.ResourceOptions())
        return namespace["transform"](args)

    assert transformed("aws:cloudwatch/logGroup:LogGroup").props == {**props, "retentionInDays": 365}
    assert transformed("aws:ec2/vpc:Vpc") is None
    assert namespace["opts"].transforms == [namespace["transform"]]
