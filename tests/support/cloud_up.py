"""A cluster on a fake cloud that is up, for tests of what `up` and `down` do with its jobs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from infra.program.stack import Stack
from node.design.model import Access, ClusterDesign, Partition
from node.design.storage import Mount
from operations.clouds import termination
from tests.support.doubles import design
from tests.support.fake_cloud import PLACE, FakeCloud, FakeProvider, head

__all__ = ["head"]
JOBS = "7|ann|cpu|cpu-[1-2]|RUNNING||train|v2\n8_1|bob|gpu||CONFIGURING||x\n"
HELD = "held=cpu\nheld=gpu\n"
CPU = Partition("cpu", "m", 4, 8000, 0, 10, default=True)
GPU = dataclasses.replace(CPU, name="gpu", default=False)
HOME = Mount("/home", "nfs", size_gib=50)
NOWHERE = Stack(Path("nowhere"), "test")
"""A stack without a file, in the test's own folder."""
FILE = """\
config:
  aws:region: eu-west-1
  slurm-stacks:cluster:
    name: renamed
    provider: aws
    partitions: [{name: cpu, instance_type: m5.large, nodes: {max: 2}}]
"""


def made(*partitions: Partition, **changes: Any) -> ClusterDesign:
    """The design of a cluster `c` on a cloud."""
    values: dict[str, Any] = {"name": "c", "region": "region-1", "access": Access("ssh"), "mounts": (HOME,)}
    return design(*(partitions or (CPU, GPU)), **(values | changes))


def outputs(**changes: Any) -> dict[str, Any]:
    return {"cluster": {"name": "c", "region": "region-1", "zone": None, **changes}}


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud()


@pytest.fixture
def provider(cloud: FakeCloud) -> FakeProvider:
    fake_provider = FakeProvider()
    fake_provider.clouds[PLACE] = cloud
    return fake_provider


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """A stack whose file gives the cluster another name by now."""
    (tmp_path / "Pulumi.test.yaml").write_text(FILE)
    return Stack(tmp_path, "test")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the user's own state folder unchanged, and makes every pause take no time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    NOWHERE.project.mkdir()
    monkeypatch.setattr(termination, "TERMINATION_POLL_SECONDS", 0.0)
