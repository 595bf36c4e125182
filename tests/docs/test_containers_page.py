"""docs/containers.md: its keys are those of the stack file, and its examples are accepted."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import yaml

from infra.config import parse
from infra.config.cluster import ContainersConfig
from tests.support.checkout import ROOT
from tests.support.stack_parts import UNMAINTAINED
from tests.support.stack_values import values

PAGE = (ROOT / "docs" / "containers.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)


def test_every_runtime_and_every_key_is_on_the_page() -> None:
    runtimes = get_args(ContainersConfig.model_fields["runtime"].annotation)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == set(runtimes)
    assert all(re.search(rf"\b{key}:", PAGE) for key in ContainersConfig.model_fields)


@pytest.mark.parametrize("example", EXAMPLES, ids=["oci", "pyxis"])
def test_an_example_is_taken(example: str) -> None:
    hashes = iter(range(9))
    filled = re.sub("…", lambda _found: f"'{next(hashes):064}'", example)
    parse(values("aws", UNMAINTAINED | yaml.safe_load(filled)), "test")
