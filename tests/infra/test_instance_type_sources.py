"""The tables of instance types and prices are what the tool makes of outside sources, and nobody's own.

`data/` has transcriptions of the sources, with their commits and dates. Whoever refreshes the tables runs the
tool on newer sources and transcribes these, too (`data/cost_calculator/README`).
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.instance_types import speeds
from infra.instance_types.catalog import _text, catalog
from infra.instance_types.speeds import Speeds
from tools import instance_types as tool

DATA = Path(__file__).parent / "data"
FACTS = catalog()
CLOUDS_NAME = {"p3dn.24xlarge": "v100", "p4de.24xlarge": "a100", "a3-megagpu-8g": "h100_mega_80gb"}
"""Type -> the cloud's own name of its GPUs, where the catalog of prices has another."""


def test_the_tables_are_what_the_tool_makes_of_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte: EC2's of its own description, as moto has it; Google's and the prices of transcriptions.

    What is to differ from EC2's description is said in `cli/providers/aws/types.py`, and why.
    """

    def show(_repository: Path, path: str) -> str:
        file = DATA / "cost_calculator" / path
        packed = file.with_name(f"{file.name}.gz")
        return gzip.decompress(packed.read_bytes()).decode() if packed.exists() else file.read_text()

    about = json.loads(_text("ec2.json"))
    assert importlib.metadata.version("moto") in about["source"], "a newer moto: run tools/instance_types.py"
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setattr(tool, "_show", show)
    # The last change of the list of types, which is older than the clone.
    monkeypatch.setattr(tool, "_git", lambda *_: "8c32d22df47862c1e729bee12cd763f25cbfdec9 2026-07-01\n")
    files = ["--prices", str(DATA / "prices.yaml"), "--us-east-1", str(DATA / "us_east_1_prices.txt")]
    monkeypatch.setattr(sys, "argv", ["instance_types.py", "--google", str(tmp_path), *files])
    tool.main()
    made = sorted(file.name for file in tmp_path.iterdir())
    tables = [f"{name}.{kind}" for name in ("ec2", "google", "prices") for kind in ("csv", "json")]
    assert made == sorted([*tables, "ec2_speeds.csv"])
    for name in made:
        assert (tmp_path / name).read_text() == _text(name), f"{name}: nobody edits it by hand"


def test_the_speeds_are_those_of_the_published_table() -> None:
    """EBS, network and the clock, as the article on AWS prints them; its 2.3 GHz are 2.4 by EC2."""
    published = {
        "m4.large": Speeds(450, "Moderate", "Intel, 2.4 GHz"),
        "c4.2xlarge": Speeds(1000, "High", "Intel, 2.9 GHz"),
    }
    assert {name: speeds.of(name) for name in published} == published
    assert speeds.of("n1-standard-2") is None


def listed() -> Iterator[tuple[str, dict[str, Any]]]:
    given = yaml.safe_load((DATA / "prices.yaml").read_text())
    for machines in given["machines"].values():
        yield from machines.items()


def test_another_catalog_says_the_same_of_sizes() -> None:
    """The catalog with the prices has vCPUs, memory, GPUs and SSDs as well, read by other people."""
    unknown = []
    for name, facts in listed():
        if name not in FACTS.machines:
            unknown.append(name)
            continue
        machine = FACTS.machines[name]
        gpu = facts.get("accelerator")
        kind = gpu and CLOUDS_NAME.get(name, gpu["type"].lower().replace("-", "_"))
        assert machine.vcpus == facts["vcpus"], name
        assert machine.memory_mib == facts["memory_gib"] * 1024, name
        have = machine.accelerator and (machine.accelerator.type, machine.accelerator.count)
        assert have == (gpu and (kind, gpu["count"])), name
        assert machine.nvme_gib == facts.get("local_ssd_gb", 0) or "local_ssd_gb" not in facts, name
    # AWS has retired P3.
    assert unknown == ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge"]


def test_every_price_is_the_catalogs() -> None:
    """Where the cloud offers the type: the catalog has prices of H3 in regions that have none."""
    compared = 0
    for name, facts in listed():
        for region, usd in facts["price"].items():
            if name in FACTS.machines and region in (FACTS.machines[name].regions or (region,)):
                assert FACTS.price(name, region) == usd, (name, region)
                compared += 1
    assert compared > 350
    given = yaml.safe_load((DATA / "prices.yaml").read_text())["accelerators_gcp"]
    assert set(given) == {name.upper() for name in FACTS.attachable}
    for name, facts in given.items():
        gpu = FACTS.attachable[name.lower()]
        assert (gpu.price, gpu.spot_price) == (facts["price"], facts["spot"])
        assert set(gpu.zones) <= set(facts["zones"])
