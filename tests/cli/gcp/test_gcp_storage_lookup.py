"""Existing storage is looked up before anything is made: Compute Engine's messages, Filestore's fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import compute_v1 as gce
from pulumi_gcp.filestore import outputs

from cli.findings import Finding, Severity, fine
from cli.providers.gcp import diagnosis, existing
from cli.providers.gcp.provider import GcpProvider
from infra.errors import EXIT_REFUSED
from infra.program.stack import Stack
from node.design.model import Backup, Hook
from node.design.storage import Mount
from operations.gcp import account, leftovers
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_google import Project, project
from tests.support.gcp_mocks import EXISTING, NFS, ZONE, gcp_design

DISK = Mount("/home", "nfs", served_by="controller", existing="lab-home", name="home")
STORE = Mount("/home", "filestore", existing="lab-store", name="home")
SAVED = dataclasses.replace(NFS[0], restore="of-march", name="home")


@pytest.fixture
def gcp_project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project() as made:
        monkeypatch.setattr(account, "of", lambda _: made.account)
        yield made


def found(gcp_project: Project, mount: Mount, **changes: Any) -> list[Finding]:
    design = gcp_design(mounts=(mount,), project=gcp_project.account.project, **changes)
    return list(existing.storage_findings(gcp_project.account, design))


def put_disk(gcp_project: Project, name: str, *users: str) -> None:
    links = [f"https://compute/projects/p/zones/{ZONE}/instances/{user}" for user in users]
    gcp_project.gce.cloud.put(
        f"zones/{ZONE}", "disks", gce.Disk(name=name, size_gb=70, users=links, status="READY")
    )


@pytest.mark.parametrize(
    ("users", "severity", "words"),
    [
        ((), Severity.FINE, "lab-home has 70 GiB, and /home is on it"),
        (("c-controller",), Severity.FINE, "lab-home has 70 GiB"),
        (("another-controller",), Severity.STOPS, "lab-home is attached to another-controller"),
    ],
)
def test_a_disk_is_the_controllers_alone(
    gcp_project: Project, users: tuple[str, ...], severity: Severity, words: str
) -> None:
    put_disk(gcp_project, "lab-home", *users)
    (only,) = found(gcp_project, DISK)
    assert only.severity is severity
    assert words in only.found


def put_store(gcp_project: Project, network: str = "corp", state: str = "READY") -> None:
    """An instance with the API's fields, which are the provider's without its own."""
    networks = [{"network": network, "ipAddresses": ["10.9.8.2"]}]
    shares = [{"name": "vol1", "capacityGb": "1024"}]
    for part, kind in (
        (networks[0], outputs.GetInstanceNetworkResult),
        (shares[0], outputs.GetInstanceFileShareResult),
    ):
        assert {re.sub(r"([A-Z])", r"_\1", key).lower() for key in part} <= set(dir(kind))
    name = f"projects/{gcp_project.account.project}/locations/{ZONE}/instances/lab-store"
    made = {"name": name, "state": state, "networks": networks, "fileShares": shares}
    gcp_project.filestores.append(made)


@pytest.mark.parametrize(
    ("network", "state", "severity", "words"),
    [
        ("corp", "READY", Severity.FINE, "lab-store has 1024 GiB as vol1"),
        ("projects/p/global/networks/corp", "READY", Severity.FINE, "as vol1"),
        ("default", "READY", Severity.STOPS, "is in the network default, not in corp"),
        ("corp", "CREATING", Severity.STOPS, "lab-store is CREATING"),
    ],
)
def test_an_instance_is_of_the_network(
    gcp_project: Project, network: str, state: str, severity: Severity, words: str
) -> None:
    put_store(gcp_project, network, state)
    (only,) = found(gcp_project, STORE, network=EXISTING)
    assert only.severity is severity
    assert words in only.found


@pytest.mark.parametrize(
    ("mount", "what"), [(DISK, "disk lab-home"), (STORE, "Filestore"), (SAVED, "snapshot of-march")]
)
def test_what_does_not_exist_is_one_message(gcp_project: Project, mount: Mount, what: str) -> None:
    (only,) = found(gcp_project, mount, network=EXISTING)
    assert only.severity is Severity.STOPS
    sentences.finding(only, "storage", Severity.STOPS, what)


def test_a_snapshot_must_fit_and_counts_only_before_the_disk_exists(gcp_project: Project) -> None:
    gcp_project.gce.cloud.put(
        "global", "snapshots", gce.Snapshot(name="of-march", disk_size_gb=70, status="READY")
    )
    (only,) = found(gcp_project, SAVED)
    sentences.finding(only, "storage", Severity.STOPS, "size_gib")
    (only,) = found(gcp_project, dataclasses.replace(SAVED, size_gib=70))
    assert only == fine("storage", "storage.home.restore: /home begins with the files of of-march (70 GiB)")
    put_disk(gcp_project, "c-home")
    assert found(gcp_project, SAVED) == []


def test_what_an_earlier_cluster_left_is_taken_back_and_never_made_twice(gcp_project: Project) -> None:
    kept = dataclasses.replace(NFS[0], keep=True, name="home")
    assert found(gcp_project, kept) == []
    labels = {leftovers.KEPT: "home"}
    gcp_project.gce.cloud.put(f"zones/{ZONE}", "disks", gce.Disk(name="c-home", size_gb=50, labels=labels))
    (only,) = found(gcp_project, kept)
    assert only.severity is Severity.STOPS
    sentences.finding(only, "storage", Severity.STOPS)
    gcp_project.bucket()
    assert found(gcp_project, kept) == [], "the cluster is up, and the disk is its own"


def test_an_instance_of_a_region_is_taken_back_by_its_whole_name(gcp_project: Project) -> None:
    kept = dataclasses.replace(STORE, existing=None, deployment="REGIONAL", keep=True)
    name = f"projects/{gcp_project.account.project}/locations/europe-west4/instances/c-home"
    gcp_project.filestores.append({"name": name, "labels": {leftovers.KEPT: "home"}})
    (only,) = found(gcp_project, kept, network=EXISTING)
    sentences.finding(only, "storage", Severity.STOPS, name)


def test_a_bucket_is_there(gcp_project: Project) -> None:
    gcp_project.bucket(name="data-1")
    for name, severity in (("data-1", Severity.FINE), ("data-2", Severity.STOPS)):
        mount = Mount("/data", "gcs", existing=f"gs://{name}", options="rw", name="buckets[0]")
        (only,) = found(gcp_project, mount)
        assert only.severity is severity


def test_the_bucket_of_backups_is_there(gcp_project: Project) -> None:
    gcp_project.bucket(name="backups-1")
    for name, severity in (("backups-1", Severity.FINE), ("backups-2", Severity.STOPS)):
        design = gcp_design(
            mounts=(), project=gcp_project.account.project, backup=Backup(f"gs://{name}/slurm")
        )
        (only,) = existing.storage_findings(gcp_project.account, design)
        assert (only.severity, name in only.found) == (severity, True)


SOURCE = "gs://lab-1/a/hook.sh"
LIMITED: list[dict[str, Any]] = [
    {"backup": Backup("gs://lab-1/slurm")},
    {"hooks": (Hook("compute", SOURCE),)},
]
"""What gets a grant with a condition."""


@pytest.mark.parametrize("changes", LIMITED)
@pytest.mark.parametrize("uniform", [True, False])
def test_a_grant_with_a_condition_needs_uniform_access(
    gcp_project: Project, changes: dict[str, Any], uniform: bool
) -> None:
    """Cloud Storage refuses it elsewhere, when the network and the accounts are made already."""
    gcp_project.bucket(name="lab-1", uniform=uniform)
    design = gcp_design(mounts=(), project=gcp_project.account.project, trains=False, **changes)
    (only,) = existing.storage_findings(gcp_project.account, design)
    if uniform:
        assert only.severity is Severity.FINE
        return
    sentences.finding(only, "storage", Severity.STOPS, "lab-1", "--uniform-bucket-level-access")
    with sentences.raises("change.not-checked", "lab-1", "uniform"):
        GcpProvider().check_changes(Stack(ROOT, "t"), design, dict, print, replace=False)


def test_a_mounted_bucket_needs_none(gcp_project: Project) -> None:
    gcp_project.bucket(name="data-1", uniform=False)
    mount = Mount("/data", "gcs", existing="gs://data-1", options="rw", name="buckets[0]")
    assert [one.severity for one in found(gcp_project, mount)] == [Severity.FINE]


def test_up_says_it_before_anything_is_made(gcp_project: Project) -> None:
    design = gcp_design(mounts=(DISK,), project=gcp_project.account.project, trains=False)
    with sentences.raises("change.not-checked", "storage.home.existing", "lab-home") as refused:
        GcpProvider().check_changes(Stack(ROOT, "t"), design, dict, print, replace=False)
    assert refused.value.exit_code == EXIT_REFUSED
    assert list(diagnosis.storage(gcp_design())) == []
