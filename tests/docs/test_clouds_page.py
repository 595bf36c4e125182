"""docs/clouds.md: its block of YAML is taken on both clouds."""

from __future__ import annotations

import re

import pytest
import yaml

from infra import config
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "clouds.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("stack", "instance_type"), [("aws-cpu", "c5.4xlarge"), ("gcp-cpu", "n1-standard-8")]
)
def test_the_key_that_opens_the_metadata_is_taken(stack: str, instance_type: str) -> None:
    (opened,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    whole = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())
    block = yaml.safe_load(opened.replace("c5.4xlarge", instance_type))
    whole["config"]["slurm-stacks:cluster"].update(block)
    whole["config"].pop("slurm-stacks:benchmark", None)
    cluster = config.parse(whole["config"], stack).cluster
    assert (cluster.login.open_metadata, cluster.partitions[0].open_metadata) == (True, True)
