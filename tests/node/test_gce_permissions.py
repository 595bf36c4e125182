"""The controller's role allows exactly the calls of the driver, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.cloud import compute_v1 as gce

from infra.gcp import policies
from node.design.model import GcpPartition, Partition, Settings, Site
from node.elastic.driver import LaunchGroup
from node.elastic.drivers.gce import deletes as gce_deletes
from node.elastic.drivers.gce import notices as gce_notices
from tests.support import doubles
from tests.support.fake_gce import FakeGce, fake_gce

PERMISSIONS = {
    "instances.aggregated_list": {"compute.instances.list"},
    "instances.list": {"compute.instances.list"},
    "instances.get": {"compute.instances.get"},
    "instances.delete": {"compute.instances.delete"},
    "zone_operations.get": {"compute.zoneOperations.get"},
    "zone_operations.wait": {"compute.zoneOperations.get"},
    "zone_operations.list": {"compute.zoneOperations.list"},
    "regions.get": {"compute.regions.get"},
    "projects.get": {"compute.projects.get"},
    "instances.bulk_insert": {
        # The template's parts and the labels need these. The subnetwork has a separate grant.
        "compute.disks.create", "compute.disks.setLabels", "compute.instanceTemplates.useReadOnly",
        "compute.instances.create", "compute.instances.setLabels", "compute.instances.setMetadata",
        "compute.instances.setServiceAccount",
    },
}  # fmt: skip
COMPUTE = Partition("compute", "n1-standard-8", 8, 100, 0, 50)
DESIGN = doubles.design(COMPUTE, provider="gcp", isolation="vm")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The permissions that the driver's calls need."""
    monkeypatch.setattr(gce_deletes, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(gce_notices, "ASK_SECONDS", 0.0)
    with fake_gce() as fake:
        _everything(fake)
        yield {permission for name in fake.names() for permission in PERMISSIONS[name]}


def _everything(fake: FakeGce) -> None:
    site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
    driver = fake.driver(Settings(DESIGN, site))
    nodes = ("compute-0", "compute-1", "compute-2")
    driver.launch(LaunchGroup("compute", nodes, True, "a"))
    driver.launch(LaunchGroup("compute", (*nodes, "compute-3"), True, "b"))
    fake.cloud.system_end("t-compute-1", notice=1_000_000)
    machines = driver.list()
    driver.available_capacity("compute", None, 3)
    driver.terminate([machine.id for machine in machines])
    driver.list()
    assert len(machines) == 4
    # An unfinished launch is checked by `get`.
    fake.calls.append(type(fake.calls[0])("zone_operations.get", gce.GetZoneOperationRequest()))


def test_every_call_of_the_driver_is_allowed_and_nothing_else_is(used: set[str]) -> None:
    assert set(policies.permissions(DESIGN)) == used


def test_placement_and_images_of_ones_own_are_asked_for_where_they_are_used() -> None:
    placed = replace(DESIGN, partitions=(replace(COMPUTE, placement="cluster", image="my-image"),))
    assert set(policies.permissions(placed)) - set(policies.permissions(DESIGN)) == {
        "compute.resourcePolicies.use", "compute.images.useReadOnly",
    }  # fmt: skip


def test_what_else_an_instance_is_made_with_is_asked_for_where_it_is_used() -> None:
    """Network tags, and bindings to tags of Resource Manager, need one permission more each."""
    bound = '{"resource_manager_tags": {"tagKeys/1": "tagValues/2"}}'
    tagged = replace(
        DESIGN,
        partitions=(
            replace(COMPUTE, gcp=GcpPartition(network_tags=("a",), instance_template_overrides=bound)),
        ),
    )
    assert set(policies.permissions(tagged)) - set(policies.permissions(DESIGN)) == {
        "compute.instances.setTags", "compute.instances.createTagBinding",
    }  # fmt: skip
