"""What the project's quotas allow, over a real client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from node.design.accelerators import Accelerator
from node.design.model import Partition, Settings, Site
from node.elastic.driver import AvailableCapacity
from node.elastic.drivers.gce.driver import GceDriver
from node.elastic.failures import ErrorClass
from tests.support import doubles
from tests.support.fake_gce import FakeGce, Fault, fake_gce

A, B = "europe-west4-a", "europe-west4-b"
COMPUTE = Partition("compute", "n1-standard-8", 8, 100, 0, 50)


@pytest.fixture
def fake() -> Iterator[FakeGce]:
    with fake_gce() as made:
        yield made


def driver_of(fake: FakeGce, partition: Partition) -> GceDriver:
    design = doubles.design(partition, provider="gcp", isolation="vm")
    return fake.driver(Settings(design, Site("/", "slurm", "head", "10.0.0.1", **fake.site())))


V100 = replace(COMPUTE, accelerator=Accelerator("v100", 2))


@pytest.mark.parametrize(
    ("partition", "quotas", "project", "count", "metric"),
    [
        (COMPUTE, {"CPUS": 40.0}, {}, 5, "CPUS in region europe-west4: 0 of 40"),
        (COMPUTE, {"CPUS": 400.0}, {"CPUS_ALL_REGIONS": 20.0}, 2, "CPUS_ALL_REGIONS of the project: 0 of 20"),
        (COMPUTE, {"CPUS": 400.0}, {}, 10, None),
        (V100, {"CPUS": 400.0, "NVIDIA_V100_GPUS": 7.0}, {}, 3, "NVIDIA_V100_GPUS in region"),
        (V100, {"NVIDIA_V100_GPUS": 70.0}, {"GPUS_ALL_REGIONS": 0.0}, 0, "GPUS_ALL_REGIONS of the project"),
        (
            replace(V100, spot=True),
            {"NVIDIA_V100_GPUS": 70.0, "PREEMPTIBLE_NVIDIA_V100_GPUS": 2.0},
            {}, 1, "PREEMPTIBLE_NVIDIA_V100_GPUS",
        ),
        (
            replace(COMPUTE, spot=True), {"CPUS": 400.0, "PREEMPTIBLE_CPUS": 24.0}, {}, 3,
            "PREEMPTIBLE_CPUS in region europe-west4: 0 of 24",
        ),
        (COMPUTE, {"CPUS": 16.0, "PREEMPTIBLE_CPUS": 400.0}, {}, 2, "CPUS in region"),
        (replace(COMPUTE, spot=True), {"CPUS": 16.0, "PREEMPTIBLE_CPUS": 0.0}, {}, 2, "CPUS in region"),
    ],
)  # fmt: skip
def test_quotas_tell_the_room(
    fake: FakeGce,
    partition: Partition,
    quotas: dict[str, float],
    project: dict[str, float],
    count: int,
    metric: str | None,
) -> None:
    fake.cloud.quotas, fake.cloud.global_quotas = quotas, project
    driver = driver_of(fake, partition)
    room = driver.available_capacity("compute", A, 10)
    assert room is not None
    assert room.count == count
    if metric is None:
        assert room == AvailableCapacity(10)
    else:
        assert room.failure is not None
        assert (room.failure.kind, metric in room.failure.message) == (ErrorClass.QUOTA, True), room
    driver.available_capacity("compute", B, 3)
    assert fake.counts() == {"regions.get": 1, "projects.get": 1}, "asked now and then"


def test_quotas_that_cannot_be_read_tell_nothing(fake: FakeGce) -> None:
    fake.faults = [Fault("regions.get", "forbidden", 403)]
    assert driver_of(fake, COMPUTE).available_capacity("compute", A, 3) is None
