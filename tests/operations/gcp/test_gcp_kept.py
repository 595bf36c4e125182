"""What `down` says of storage that stays on Google Cloud, and that it is no leftover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import compute_v1 as gce

from infra.gcp.storage import snapshot_prefix
from node.elastic.drivers.gce.names import CLUSTER
from operations.gcp import kept, leftovers
from tests.support.fake_google import Project, project
from tests.support.gcp_mocks import ZONE

PATHS = {"home": "/home", "apps": "/apps", "scratch": "/data"}
STAYS = {CLUSTER: "c", leftovers.KEPT: "home"}


@pytest.fixture
def gcp_project() -> Iterator[Project]:
    with project() as made:
        yield made


def put_disk(gcp_project: Project, name: str, labels: dict[str, str]) -> None:
    disk = gce.Disk(name=name, size_gb=50, status="READY", labels=labels)
    gcp_project.gce.cloud.put(f"zones/{ZONE}", "disks", disk)


def put_snapshot(gcp_project: Project, name: str, disk: str) -> None:
    link = f"https://compute/projects/p/zones/{ZONE}/disks/{disk}"
    # Whether the provider labels it like its disk is not documented.
    made = gce.Snapshot(name=name, source_disk=link, disk_size_gb=60, status="READY", labels={CLUSTER: "c"})
    gcp_project.gce.cloud.put("global", "snapshots", made)


def test_what_stays_is_named_with_its_cost_and_keys_and_is_no_leftover(gcp_project: Project) -> None:
    put_disk(gcp_project, "c-home", STAYS)
    put_disk(gcp_project, "other-home", {**STAYS, CLUSTER: "other"})
    for place in (ZONE, "europe-west4"):
        gcp_project.filestores.append({
            "name": f"projects/{gcp_project.account.project}/locations/{place}/instances/c-data",
            "tier": "BASIC_HDD", "labels": {CLUSTER: "c", leftovers.KEPT: "scratch"}, "state": "READY",
            "fileShares": [{"name": "data", "capacityGb": "1024"}],
        })  # fmt: skip
    disk, zonal, regional = kept.kept(gcp_project.account, "c", PATHS)
    assert disk.line() == "persistent disk c-home (home, 50 GiB): 0.0068 USD an hour, 5.00 USD a month"
    assert disk.keys == {"kind": "nfs", "existing": "c-home"}
    assert zonal.keys["existing"] == "c-data"
    assert regional.keys["existing"] == gcp_project.filestores[1]["name"], "one of a region needs its place"
    assert leftovers.leftovers(gcp_project.account, "c") == []


def test_a_snapshot_is_known_by_its_disk_and_its_name(gcp_project: Project) -> None:
    text = f"{snapshot_prefix('c-apps')}-20260102-150405"
    put_snapshot(gcp_project, text, "c-apps")
    put_snapshot(gcp_project, "c-apps-20260102-150406", "c-apps-of-somebody")
    (only,) = kept.kept(gcp_project.account, "c", PATHS)
    assert (only.name, only.keys["restore"], only.keys["size_gib"]) == ("apps", text, 60)
    assert only.line().endswith("price unknown")
    assert leftovers.leftovers(gcp_project.account, "c") == []
    assert list(kept.kept(gcp_project.account, "c", {})) == [], "without a stack file nobody knows its disks"
