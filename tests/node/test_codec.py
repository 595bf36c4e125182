"""Tests of the design as JSON: a round trip changes nothing, and every error has the path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.design.accelerators import Accelerator
from node.design.local_cloud import CloudBehaviour
from node.design.model import Hook, Partition, Settings
from node.design.storage import Mount
from node.system.codec import from_json, to_json
from tests.support.doubles import design, settings

FULL = design(
    Partition("gpu", "local.medium", 2, 100, 0, 3, Accelerator("v100", 2, simulated=True), price_hour=1.5),
    mounts=(Mount("/home", "nfs", served_by="controller"),),
    hooks=(Hook("all", "x.sh", ("a", "b"), 5),),
    local=CloudBehaviour(1.0, capacity={"debug/a": 2}),
)


def test_settings_survive_a_round_trip(tmp_path: Path) -> None:
    made = settings(tmp_path, FULL)
    assert from_json(Settings, json.loads(json.dumps(to_json(made)))) == made


def change(path: str, value: Any) -> Callable[[Any], None]:
    def apply(content: Any) -> None:
        *way, last = path.split(".")
        for step in way:
            content = content[int(step)] if isinstance(content, list) else content[step]
        content[last] = value

    return apply


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            change("design.partitions.0.colour", 1),
            r"Settings\.design\.partitions\[0\]: unknown fields colour",
        ),
        (change("design.partitions.0.max", "3"), r"partitions\[0\]\.max: int is expected, not '3'"),
        (change("design.partitions.0.max", True), r"partitions\[0\]\.max: int is expected, not True"),
        (change("design.partitions.0.accelerator", 3), r"accelerator: an object is expected, not 3"),
        (change("design.partitions", {}), r"Settings\.design\.partitions: a list is expected"),
        (change("site.mounts", []), r"Settings\.site\.mounts: an object is expected"),
        (change("site.cloud", None), r"Settings\.site\.cloud: an object is expected, not None"),
        (
            change("site.cloud.provider", "ibm"),
            r"site\.cloud\.provider: aws or gcp or local is expected, not 'ibm'",
        ),
        (
            change("site.cloud.provider", "gcp"),
            r"Settings\.site\.cloud: unknown fields ipv6, loopback_only, socket",
        ),
        (lambda c: c["site"].pop("root"), r"Settings\.site: missing fields root"),
        (change("design.hooks.0.args", [1]), r"hooks\[0\]\.args\[0\]: str is expected, not 1"),
    ],
)
def test_a_mistake_is_named_by_its_path(tmp_path: Path, edit: Callable[[Any], None], message: str) -> None:
    content = json.loads(json.dumps(to_json(settings(tmp_path, FULL))))
    edit(content)
    with pytest.raises(ValueError, match=message):
        from_json(Settings, content)


def test_whole_numbers_are_seconds_too() -> None:
    read = from_json(CloudBehaviour, {"boot_delay": 2, "quota_nodes": None})
    assert (read, type(read.boot_delay)) == (CloudBehaviour(2.0), float)
    with pytest.raises(ValueError, match="boot_delay"):
        from_json(CloudBehaviour, {"boot_delay": True})
