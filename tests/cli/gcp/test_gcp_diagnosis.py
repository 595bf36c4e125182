"""The doctor's checks for Google Cloud: credentials, SSH access, quotas, GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.cloud import compute_v1 as gce

from cli.findings import Finding, Severity
from cli.providers.clouds.quotas import Wanted
from cli.providers.gcp import diagnosis, quotas
from cli.providers.gcp.diagnosis import checks
from infra.instance_types.catalog import catalog
from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign
from operations.gcp import account
from tests.support import sentences
from tests.support.fake_gce import Fault
from tests.support.fake_google import KEY, Project, project
from tests.support.gcp_mocks import CPU, GPU, gcp_design, gcp_ssh_design

ZONE = "europe-west4-a"


@pytest.fixture(scope="module")
def shared() -> Iterator[Project]:
    """One for the whole module: making it takes a second, because the library reads its messages."""
    with project() as made:
        yield made


@pytest.fixture
def gcp_project(shared: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    shared.empty()
    cloud = shared.gce.cloud
    cloud.put(f"zones/{ZONE}", "acceleratorTypes", gce.AcceleratorType(name="nvidia-tesla-v100"))
    cloud.quotas, cloud.global_quotas = {}, {}
    monkeypatch.setattr(account, "of", lambda _: shared.account)
    monkeypatch.setattr(account, "require", lambda _settings: None)
    return shared


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys and without an agent, on a machine without any program."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def looked(design: ClusterDesign) -> list[Finding]:
    return [finding for check in checks(design) for finding in check.look()]


def found(design: ClusterDesign) -> dict[str, Severity]:
    return {finding.check: finding.severity for finding in looked(design)}


def test_the_doctor_names_what_this_machine_lacks(nobody: None, home: Path) -> None:
    assert found(gcp_design(project=None)) == dict.fromkeys(
        ("credentials", "project", "ssh.client", "ssh.gcloud", "ssh.key"), Severity.STOPS
    )
    ssh = found(gcp_ssh_design())
    assert {name for name in ssh if name.startswith("ssh")} == {"ssh.client", "ssh.key"}


def test_the_doctor_finds_nothing_wrong_where_all_is_there(gcp_project: Project, home: Path) -> None:
    for tool in ("ssh", "gcloud"):
        (home / tool).write_text("#!/bin/sh\n")
        (home / tool).chmod(0o755)
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519.pub").write_text(KEY)
    design = gcp_design(project="p-1")
    assert set(found(design).values()) == {Severity.FINE}
    gcp_project.gce.cloud.quotas = {"NVIDIA_V100_GPUS": 8, "CPUS": 54}
    assert set(found(design).values()) == {Severity.FINE}


def test_without_a_stack_file_the_credentials_are_looked_at_alone(nobody: None) -> None:
    assert [check.name for check in checks(None)] == ["credentials"]


def test_every_node_of_every_kind_is_counted() -> None:
    design = gcp_design()
    assert quotas.wanted_quotas(design) == {
        "CPUS": Wanted(2, 2 + 10 * 2 + 4 * 8),
        "SSD_TOTAL_GB": Wanted(50 + 50 + 60, 15 * 50 + 50 + 60),
        "NVIDIA_V100_GPUS": Wanted(0, 8),
        "CPUS_ALL_REGIONS": Wanted(2, 54),
        "GPUS_ALL_REGIONS": Wanted(0, 8),
    }
    spot = (dataclasses.replace(CPU, min=1), dataclasses.replace(GPU, spot=True, min=2))
    counted = quotas.wanted_quotas(gcp_design(partitions=spot))
    assert counted["PREEMPTIBLE_NVIDIA_V100_GPUS"] == Wanted(4, 8)
    assert counted["CPUS"].always == 2 + 2 + 2 * 8
    own = (dataclasses.replace(CPU, instance_type="n2-standard-4", cpus=4),)
    assert quotas.wanted_quotas(gcp_design(partitions=own))["N2_CPUS"] == Wanted(0, 40)
    assert (
        quotas.wanted_quotas(gcp_ssh_design())["STATIC_ADDRESSES"].always
        == sum("public" in host.tags for host in gcp_ssh_design().hosts)
        > 0
    )


def test_a_new_projects_quotas_are_said_with_what_is_needed(gcp_project: Project) -> None:
    gcp_project.gce.cloud.quotas = {"NVIDIA_V100_GPUS": 1, "CPUS": 54}
    gcp_project.gce.cloud.global_quotas = {"GPUS_ALL_REGIONS": 0}
    said = list(quotas.quota_findings(gcp_project.account, gcp_design(project="p-1")))
    assert [(one.check, one.severity) for one in said] == [
        ("quotas", Severity.WARNS),
        ("quotas", Severity.WARNS),
        ("gpus", Severity.FINE),
    ]
    sentences.finding(said[1], "quotas", Severity.WARNS, "NVIDIA_V100_GPUS", "europe-west4")
    static = (CPU, dataclasses.replace(GPU, min=1))
    said = list(quotas.quota_findings(gcp_project.account, gcp_design(project="p-1", partitions=static)))
    assert [one.severity for one in said] == [Severity.STOPS, Severity.STOPS, Severity.FINE]
    sentences.finding(said[0], "quotas", Severity.STOPS)


def test_what_the_cluster_uses_already_is_not_missing(
    gcp_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google counts it as used."""
    gcp_project.gce.cloud.quotas = {"CPUS": 54}
    monkeypatch.setattr(
        gcp_project.gce.cloud,
        "usage",
        lambda limits: [(metric, limit, 2 + 2 + 8) for metric, limit in limits.items()],
    )
    design = gcp_design(project="p-1")
    (short,) = (
        finding for finding in quotas.quota_findings(gcp_project.account, design) if finding.group == "quotas"
    )
    sentences.finding(short, "quotas", Severity.WARNS, "europe-west4")
    gcp_project.head()
    gcp_project.node("cpu-0")
    gcp_project.node("gpu-3")
    (enough,) = (
        finding for finding in quotas.quota_findings(gcp_project.account, design) if finding.group == "quotas"
    )
    assert enough.severity is Severity.FINE


def test_a_zone_without_the_gpu_is_named_with_the_line_that_lists_those_with(gcp_project: Project) -> None:
    zones = (CPU, dataclasses.replace(GPU, zones=(ZONE, "europe-west4-b")))
    (wrong,) = (
        finding
        for finding in quotas.quota_findings(gcp_project.account, gcp_design(project="p-1", partitions=zones))
        if finding.severity is Severity.STOPS
    )
    sentences.finding(wrong, "gpus", Severity.STOPS, "europe-west4-b", "filter=name=nvidia-tesla-v100")


def test_an_api_that_is_not_enabled_stops_and_a_cloud_that_is_silent_warns(gcp_project: Project) -> None:
    gcp_project.gce.faults = [Fault("regions.get", "accessNotConfigured", 403)]
    (wrong,) = diagnosis.limits(gcp_design(project="p-1"))
    assert wrong.severity is Severity.STOPS
    assert "gcloud services enable compute.googleapis.com --project p-1" in f"{wrong.found} {wrong.cure}"
    gcp_project.gce.faults = [Fault("regions.get", "forbidden", 403)]
    (unknown,) = diagnosis.limits(gcp_design(project="p-1"))
    assert (unknown.severity, unknown.check) == (Severity.WARNS, "quotas")
    sentences.finding(unknown, "quotas", Severity.WARNS, "p-1")
    gcp_project.gce.faults = [
        Fault("acceleratorTypes.get", "x", 500),
        Fault("accelerator_types.get", "x", 500),
    ]
    severities = [limit.severity for limit in diagnosis.limits(gcp_design(project="p-1"))]
    assert severities == [Severity.FINE, Severity.WARNS]


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("a2-highgpu-1g", "nvidia-tesla-a100"),
        ("a2-ultragpu-1g", "nvidia-a100-80gb"),
        ("a3-megagpu-8g", "nvidia-h100-mega-80gb"),
        ("g2-standard-4", "nvidia-l4"),
    ],
)
def test_gpus_that_come_with_a_machine_are_asked_for_by_googles_names(machine: str, name: str) -> None:
    built_in = catalog().machines[machine].accelerator
    assert built_in is not None
    accelerator = Accelerator(type=built_in.type, count=built_in.count)
    partition = dataclasses.replace(
        gcp_design().partitions[0], instance_type=machine, accelerator=accelerator
    )
    assert quotas.gpu(partition) == name
