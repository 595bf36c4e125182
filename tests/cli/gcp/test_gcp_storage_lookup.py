"""Existing storage is looked up before anything is made: Compute Engine's messages, Filestore's fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import compute_v1 as gce
from pulumi_gcp.filestore import outputs

from cli.doctor.finding import Finding, Severity, fine
from cli.gcp import diagnosis
from cli.gcp.provider import GcpProvider
from infra.errors import EXIT_REFUSED
from infra.program.stack import Stack
from node.model import Backup, Mount
from operations.gcp import account, leftovers
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_google import Project, project
from tests.support.gcp_mocks import EXISTING, NFS, ZONE, gcp_design

DISK = Mount("/home", "nfs", served_by="controller", existing="lab-home", name="home")
STORE = Mount("/home", "filestore", existing="lab-store", name="home")
SAVED = dataclasses.replace(NFS[0], restore="of-march", name="home")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project() as made:
        monkeypatch.setattr(account, "of", lambda _: made.account)
        yield made


def found(there: Project, mount: Mount, **changes: Any) -> list[Finding]:
    design = gcp_design(mounts=(mount,), project=there.account.project, **changes)
    return list(diagnosis.storage_findings(there.account, design))


def put_disk(there: Project, name: str, *users: str) -> None:
    links = [f"https://compute/projects/p/zones/{ZONE}/instances/{user}" for user in users]
    there.gce.cloud.put(
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
    there: Project, users: tuple[str, ...], severity: Severity, words: str
) -> None:
    put_disk(there, "lab-home", *users)
    (only,) = found(there, DISK)
    assert only.severity is severity
    assert words in only.found


def put_store(there: Project, network: str = "corp", state: str = "READY") -> None:
    """An instance with the API's fields, which are the provider's without its own."""
    networks = [{"network": network, "ipAddresses": ["10.9.8.2"]}]
    shares = [{"name": "vol1", "capacityGb": "1024"}]
    for part, kind in (
        (networks[0], outputs.GetInstanceNetworkResult),
        (shares[0], outputs.GetInstanceFileShareResult),
    ):
        assert {re.sub(r"([A-Z])", r"_\1", key).lower() for key in part} <= set(dir(kind))
    name = f"projects/{there.account.project}/locations/{ZONE}/instances/lab-store"
    made = {"name": name, "state": state, "networks": networks, "fileShares": shares}
    there.filestores.append(made)


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
    there: Project, network: str, state: str, severity: Severity, words: str
) -> None:
    put_store(there, network, state)
    (only,) = found(there, STORE, network=EXISTING)
    assert only.severity is severity
    assert words in only.found


@pytest.mark.parametrize(
    ("mount", "what"), [(DISK, "disk lab-home"), (STORE, "Filestore"), (SAVED, "snapshot of-march")]
)
def test_what_does_not_exist_is_one_message(there: Project, mount: Mount, what: str) -> None:
    (only,) = found(there, mount, network=EXISTING)
    assert only.severity is Severity.STOPS
    sentences.finding(only, "storage", Severity.STOPS, what)


def test_a_snapshot_must_fit_and_counts_only_before_the_disk_exists(there: Project) -> None:
    there.gce.cloud.put("global", "snapshots", gce.Snapshot(name="of-march", disk_size_gb=70, status="READY"))
    (only,) = found(there, SAVED)
    sentences.finding(only, "storage", Severity.STOPS, "size_gib")
    (only,) = found(there, dataclasses.replace(SAVED, size_gib=70))
    assert only == fine("storage", "storage.home.restore: /home begins with the files of of-march (70 GiB)")
    put_disk(there, "c-home")
    assert found(there, SAVED) == []


def test_what_an_earlier_cluster_left_is_taken_back_and_never_made_twice(there: Project) -> None:
    kept = dataclasses.replace(NFS[0], keep=True, name="home")
    assert found(there, kept) == []
    labels = {leftovers.KEPT: "home"}
    there.gce.cloud.put(f"zones/{ZONE}", "disks", gce.Disk(name="c-home", size_gb=50, labels=labels))
    (only,) = found(there, kept)
    assert only.severity is Severity.STOPS
    sentences.finding(only, "storage", Severity.STOPS)
    there.bucket()
    assert found(there, kept) == [], "the cluster is up, and the disk is its own"


def test_an_instance_of_a_region_is_taken_back_by_its_whole_name(there: Project) -> None:
    kept = dataclasses.replace(STORE, existing=None, deployment="REGIONAL", keep=True)
    name = f"projects/{there.account.project}/locations/europe-west4/instances/c-home"
    there.filestores.append({"name": name, "labels": {leftovers.KEPT: "home"}})
    (only,) = found(there, kept, network=EXISTING)
    sentences.finding(only, "storage", Severity.STOPS, name)


def test_a_bucket_is_there(there: Project) -> None:
    there.bucket(name="data-1")
    for name, severity in (("data-1", Severity.FINE), ("data-2", Severity.STOPS)):
        mount = Mount("/data", "gcs", existing=f"gs://{name}", options="rw", name="buckets[0]")
        (only,) = found(there, mount)
        assert only.severity is severity


def test_the_bucket_of_backups_is_there(there: Project) -> None:
    there.bucket(name="backups-1")
    for name, severity in (("backups-1", Severity.FINE), ("backups-2", Severity.STOPS)):
        design = gcp_design(mounts=(), project=there.account.project, backup=Backup(f"gs://{name}/slurm"))
        (only,) = diagnosis.storage_findings(there.account, design)
        assert (only.severity, name in only.found) == (severity, True)


def test_up_says_it_before_anything_is_made(there: Project) -> None:
    design = gcp_design(mounts=(DISK,), project=there.account.project, trains=False)
    with sentences.raises("change.not-checked", "storage.home.existing", "lab-home") as refused:
        GcpProvider().check_changes(Stack(ROOT, "t"), design, dict, print, replace=False)
    assert refused.value.exit_code == EXIT_REFUSED
    assert list(diagnosis.storage(gcp_design())) == []
