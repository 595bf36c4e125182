"""Whatever the cloud refuses, each node of a launch has a machine or a cause, and no machine is left over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.design.model import Partition, Settings, Site
from node.elastic.driver import LaunchGroup
from node.elastic.drivers.gce import deletes as gce_deletes
from node.elastic.drivers.gce import operations as gce_operations
from node.elastic.drivers.gce.driver import GceDriver
from node.elastic.drivers.gce.names import Identity
from tests.support import doubles
from tests.support.fake_gce import Failing, FakeGce, fake_gce

COMPUTE = Partition("compute", "n1-standard-8", 8, 100, 0, 50)
DESIGN = doubles.design(COMPUTE, provider="gcp", isolation="vm")
A, B = "europe-west4-a", "europe-west4-b"
TOKENS = itertools.count()
CODES = ("ZONE_RESOURCE_POOL_EXHAUSTED", "QUOTA_EXCEEDED", "INTERNAL_ERROR", "NOVEL")

FAILING = st.builds(
    Failing,
    st.sampled_from(["insert", "bulkInsert"]),
    st.sampled_from(CODES),
    st.just("why"),
    st.lists(st.integers(0, 7).map(lambda n: f"t-compute-{n}"), max_size=3),
    st.integers(1, 4),
    st.integers(0, 3),
)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[FakeGce, GceDriver]]:
    with pytest.MonkeyPatch.context() as patch, fake_gce() as fake:
        patch.setattr(gce_operations, "PAUSES", ())
        patch.setattr(gce_deletes, "PAUSES", ())
        fake.cloud.seconds = 0.0
        site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
        yield fake, fake.driver(Settings(DESIGN, site))


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 8),
    there=st.lists(st.integers(0, 7), unique=True, max_size=3),
    whole=st.booleans(),
    zone=st.sampled_from([None, A, B]),
    capacity=st.dictionaries(st.sampled_from([A, B]), st.integers(0, 9)),
    failing=st.lists(FAILING, max_size=3),
)
def test_each_node_has_a_machine_or_a_cause(
    both: tuple[FakeGce, GceDriver],
    count: int,
    there: list[int],
    whole: bool,
    zone: str | None,
    capacity: dict[str, int],
    failing: list[Failing],
) -> None:
    fake, driver = both
    fake.cloud.capacity, fake.cloud.failing, fake.cloud.quotas = {}, [], {}
    for scope in (f"zones/{A}", f"zones/{B}"):
        fake.cloud.at(scope, "instances").clear()
    before = tuple(f"compute-{n}" for n in there)
    if before:
        old = driver.launch(LaunchGroup("compute", before, True, f"{next(TOKENS)}", zone=A))
        assert set(old.launched) == set(before)
    fake.cloud.capacity, fake.cloud.failing = capacity, failing
    nodes = tuple(f"compute-{n}" for n in range(count))
    result = driver.launch(LaunchGroup("compute", nodes, whole, f"{next(TOKENS)}", zone=zone))
    lost = [node for failure in result.failures for node in failure.nodes]
    assert sorted([*result.launched, *lost]) == sorted(nodes), "each once"
    if whole:
        assert not (result.launched and lost)
    fake.cloud.tick()
    living = {str(Identity(i.zone.rpartition("/")[2], i.name, int(i.id))) for i in fake.living()}
    assert set(result.launched.values()) <= living
    others = {name.rpartition("/")[0].rpartition("/")[2] for name in living - set(result.launched.values())}
    assert others <= {f"t-{node}" for node in before}, "nothing is left that nobody knows of"
