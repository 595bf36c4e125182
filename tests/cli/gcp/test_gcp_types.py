"""Questions to Compute Engine about unknown instance types, answered with its library's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from google.cloud import compute_v1 as gce

from cli.providers import instance_type_lookup
from infra.config import ConfigError, load_file
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from operations.gcp import account
from tests.support.fake_gce import Fault
from tests.support.fake_google import Project, project

ZONE = "europe-west4-a"


@pytest.fixture(scope="module")
def shared() -> Iterator[Project]:
    """One for the whole module: making it takes a second, because the library reads its messages."""
    with project() as made:
        yield made


@pytest.fixture
def gcp_project(shared: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Project:
    """A zone with types that the table lacks, one of them with ARM processors."""
    shared.empty()
    gpu = gce.Accelerators(guest_accelerator_type="nvidia-x300-90gb", guest_accelerator_count=8)
    for name, vcpus, gib, more in (
        ("c9-standard-8", 8, 32, {"architecture": "X86_64"}),
        ("a9-highgpu-8g", 208, 1872, {"accelerators": [gpu], "bundled_local_ssds": {"partition_count": 16}}),
        ("z9-standard-4", 4, 16, {"architecture": "ARM64"}),
        ("n2-custom-6-20480", 6, 20, {}),
    ):
        machine = gce.MachineType(name=name, guest_cpus=vcpus, memory_mb=gib * 1024, **more)
        shared.gce.cloud.put(f"zones/{ZONE}", "machineTypes", machine)
    monkeypatch.setattr(account, "of", lambda _: shared.account)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return shared


def stack(folder: Path, *machines: str) -> Path:
    partitions = [
        {"name": f"p{i}", "instance_type": name, "nodes": {"max": 2}} for i, name in enumerate(machines)
    ]
    cluster = {"name": "c", "provider": "gcp", "partitions": partitions}
    values = {"gcp:project": "ml-training", "gcp:zone": ZONE, "slurm-stacks:cluster": cluster}
    path = folder / "Pulumi.t.yaml"
    path.write_text(yaml.safe_dump({"config": values}))
    return path


@pytest.mark.usefixtures("gcp_project")
def test_up_learns_types_that_plan_then_knows(tmp_path: Path) -> None:
    path = stack(tmp_path, "c9-standard-8", "a9-highgpu-8g", "n2-custom-6-20480")
    with pytest.raises(ConfigError, match=r"`\./cluster doctor --stack t` asks Google Cloud about it"):
        load_file(path)
    answer = instance_type_lookup.look_up_missing(Stack(tmp_path, "t"))
    assert answer.unknown == ()
    plain, gpus, custom = design(load_file(path), catalog()).partitions
    assert (plain.cpus, plain.price_hour, plain.accelerator) == (8, None, None)
    assert gpus.accelerator is not None
    assert (gpus.accelerator.type, gpus.accelerator.count) == ("x300_90gb", 8)
    machine = catalog().machines["a9-highgpu-8g"]
    assert (machine.nvme_gib, machine.regions) == (16 * 375, ("europe-west4",))
    assert catalog().machines["n2-custom-6-20480"].placement, "as all of its series"
    assert custom.cpus == 6
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "t")) == instance_type_lookup.Answer(), (
        "they are known now: nobody is asked"
    )


def test_what_compute_engine_does_not_have_or_we_cannot_use(gcp_project: Project, tmp_path: Path) -> None:
    stack(tmp_path, "z9-standard-4", "c9-standard-4", "n4-standard-2", "t2a-standard-1")
    assert instance_type_lookup.look_up_missing(Stack(tmp_path, "t")).unknown == (
        "z9-standard-4 cannot be used: its processors are ARM64, and this project's software is for x86-64",
        f"Google Cloud has no instance type c9-standard-4 in {ZONE}",
    )
    asked = [call.request.machine_type for call in gcp_project.gce.calls if call.name == "machine_types.get"]
    assert asked == ["c9-standard-4", "z9-standard-4"], "of Hyperdisk series and ARM nobody is asked"
    with pytest.raises(ConfigError) as refused:
        load_file(tmp_path / "Pulumi.t.yaml")
    said = str(refused.value)
    assert "its processors are ARM64" in said
    assert "n4-standard-2 is not one: its disks are Hyperdisks only" in said
    assert "t2a-standard-1 has ARM processors" in said


def test_a_refusal_of_googles_is_said(gcp_project: Project, tmp_path: Path) -> None:
    gcp_project.gce.faults.append(Fault("machine_types.get", "forbidden", 403))
    stack(tmp_path, "c9-standard-8")
    (why,) = instance_type_lookup.look_up_missing(Stack(tmp_path, "t")).unknown
    assert why.startswith("Google Cloud could not be asked about c9-standard-8: ")
