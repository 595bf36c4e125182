"""docs/storage.md says what stack files may say, and what `down` prints."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from infra.config.rules.storage import THROUGHPUT
from infra.config.storage import SharedStorage
from operations.clouds.kept import KeptStorage, Value, kept_report
from tests.support.checkout import ROOT
from tests.support.stack_values import CLUSTER, mistakes, values

PAGE = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
VPC = {"vpc": "vpc-12345678", "public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_a_stack_file(text: str) -> None:
    said: dict[str, Any] = yaml.safe_load(text)
    config = values("aws", {"network": {"aws": VPC}})
    config[CLUSTER] = {**config[CLUSTER], **said}
    assert mistakes(config) == []


def test_downs_last_lines_are_those_of_the_page() -> None:
    apps: dict[str, Value] = {
        "kind": "nfs",
        "size_gib": 100,
        "snapshot": True,
        "restore": "snap-0123456789abcdef0",
    }
    home: dict[str, Value] = {"kind": "nfs", "existing": "vol-0123456789abcdef0"}
    found = [
        KeptStorage("apps", "EBS snapshot snap-0123456789abcdef0", 100, "", apps),
        KeptStorage("home", "EBS volume vol-0123456789abcdef0", 200, "", home, 0.08),
    ]
    (shown,) = re.findall(r"```text\nnothing else is left\n(.*?)```", PAGE, re.DOTALL)
    assert kept_report(found, "Pulumi.lab.yaml", {}) == shown.splitlines()


def test_the_classes_of_lustre_are_those_that_are_allowed() -> None:
    for (deployment, disks), speeds in THROUGHPUT.items():
        name = f"`{deployment}` {disks}" if deployment == "PERSISTENT_1" else f"`{deployment}`"
        assert f"| {name} | {', '.join(map(str, speeds))} | any |" in PAGE


def test_every_key_of_a_storage_that_outlives_a_cluster_is_on_the_page() -> None:
    keys = {"existing", "security_group", "keep", "snapshot", "restore", "gp3"}
    assert keys <= set(SharedStorage.model_fields)
    assert {key for key in keys if f"`{key}" not in PAGE} == set()
