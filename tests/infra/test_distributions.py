"""The distributions that machines boot: whole rows, the stack's choice, and refusals."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from infra import slurm_releases
from infra.config import ConfigError, distributions, load_file
from infra.config.hosts import ImageConfig
from infra.config.load import StackConfig, parse
from infra.config.stack_file import read
from infra.design import design
from infra.instance_types.catalog import catalog
from tests.support import shipped

ROOT = Path(__file__).parents[2]
SHIPPED = [name for name in shipped.stacks() if "local" not in name]
NEEDS_UBUNTU = {"aws-gpu", "aws-p4de", "aws-p4de-containers", "aws-p4de-inference", "aws-trn1", "gcp-gpu"}
"""Shipped stacks whose hardware only Ubuntu 24.04 supports."""
TODAY = slurm_releases.table().date.isoformat()


def stack(name: str, **changes: Any) -> StackConfig:
    """The shipped stack with other keys of its cluster."""
    content, _ = read(ROOT / f"Pulumi.{name}.yaml")
    values = copy.deepcopy(content["config"])
    values["slurm-stacks:cluster"] |= changes
    return parse(values, name)


def refusal(name: str, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        stack(name, **changes)
    return str(caught.value)


def _sources() -> list[str]:
    """What the schema allows as `image.source`."""
    (text, _) = ImageConfig.model_json_schema()["properties"]["source"]["anyOf"]
    return list(text["enum"])


@pytest.mark.parametrize("source", _sources())
def test_every_distribution_of_the_stack_file_has_a_whole_row(source: str) -> None:
    row = distributions.DISTRIBUTIONS[source]
    for part in (row, row.aws, row.google):
        for field in dataclasses.fields(part):
            assert field.default is dataclasses.MISSING, f"{field.name}: a row has no defaults"
            value = getattr(part, field.name)
            assert isinstance(value, bool) or value, f"{source}: {field.name} is empty"
    assert set(row.offers) == set(distributions.NEEDS), source
    for need, offer in row.offers.items():
        assert len(offer.why.split()) >= 3, f"{source}, {need}: say what the vendor says"


def test_every_need_can_be_met() -> None:
    """Otherwise a stack would have no distribution at all."""
    whole = distributions.DISTRIBUTIONS[distributions.OWN_IMAGES]
    assert all(offer.supported for offer in whole.offers.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_stack_gets_what_its_hardware_allows(name: str) -> None:
    source = design(load_file(ROOT / f"Pulumi.{name}.yaml"), catalog()).image.source
    ubuntu = name in NEEDS_UBUNTU or name == "aws-batch"
    assert source == ("ubuntu-24.04" if ubuntu else "debian-13")


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "aws-batch"])
def test_a_shipped_stack_gets_a_slurm_that_is_maintained(name: str) -> None:
    table = slurm_releases.table()
    config = load_file(ROOT / f"Pulumi.{name}.yaml")
    package = table.packages[str(distributions.slurm_package(config.cluster, catalog()))]
    assert table.maintained(package), table.described(package)
    assert config.cluster.slurm.accept_unmaintained is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("aws-cpu", {"access": {"mode": "ssm"}}, ["access.mode", "mode: ssh", "Session Manager's agent"]),
        ("aws-cpu", {"access": {}}, ["access.mode", "Session Manager's agent"]),
        (
            "aws-cpu",
            {"image": {"source": "debian-13", "bake": True}},
            ["image.bake", "EC2 Image Builder lists"],
        ),
        (
            "aws-cpu",
            {"controller": {"image": {"id": "ami-0123456789abcdef0"}}},
            ["controller.image", "Ubuntu"],
        ),
        ("aws-gpu", {}, ["instance_type", "driver 580", "FSx's package repository"]),
        ("aws-p4de", {"image": {"source": "debian-13"}}, ["aws.efa", "cloud kernel lacks"]),
        ("aws-trn1", {"image": {"source": "debian-13"}}, ["AWS Neuron's driver"]),
        ("gcp-gpu", {}, ["accelerator", "driver 550"]),
        ("aws-batch", {"image": {"source": "debian-13", "bake": True}}, ["scheduler", "Lustre client"]),
    ],
)
def test_what_no_vendor_supports_is_refused_with_what_would_do(
    name: str, changes: dict[str, Any], words: list[str]
) -> None:
    text = refusal(name, **{"image": {"source": "debian-13"}, **changes})
    assert "slurm-stacks:cluster.image.source" in text
    assert "ubuntu-24.04" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("name", "changes", "source"),
    [
        ("aws-cpu", {"access": {"mode": "ssm"}}, "ubuntu-24.04"),
        ("aws-cpu", {"image": {"bake": True}}, "ubuntu-24.04"),
        ("aws-cpu", {"image": {"id": "ami-0123456789abcdef0"}}, "ubuntu-24.04"),
        ("aws-cpu", {"image": {"source": "ubuntu-24.04"}}, "ubuntu-24.04"),
        ("aws-cpu", {"storage": {"buckets": [{"bucket": "s3://lab-data", "path": "/data"}]}}, "debian-13"),
        ("gcp-cpu", {"image": {"bake": True}}, "debian-13"),
        ("gcp-cpu", {"storage": {"buckets": [{"bucket": "gs://lab-data", "path": "/data"}]}}, "debian-13"),
    ],
)
def test_a_stack_gets_the_first_distribution_that_has_all_it_needs(
    name: str, changes: dict[str, Any], source: str
) -> None:
    cluster_design = design(stack(name, **changes), catalog())
    assert cluster_design.image.source == source
    user = distributions.DISTRIBUTIONS[source].aws.user
    assert cluster_design.access.user == (user if cluster_design.provider == "aws" else None)


@pytest.mark.parametrize(
    ("changes", "path", "cve"),
    [
        (
            {"slurm": {"accounting": True}},
            "slurm.accounting",
            "CVE-2025-43904, CVE-2026-65139, CVE-2026-65140",
        ),
        ({"containers": {"runtime": "oci"}}, "containers.runtime", "CVE-2026-65109"),
        (
            {"containers": {"runtime": "pyxis", "packages": [{"source": "p/x.deb", "sha256": "0" * 64}]}},
            "containers.runtime",
            "CVE-2026-65108",
        ),
    ],
)
def test_nobody_relies_on_a_slurm_without_maintainer_unless_the_stack_accepts_it(
    changes: dict[str, Any], path: str, cve: str
) -> None:
    for image in ({"source": "ubuntu-24.04"}, {"id": "ami-0123456789abcdef0"}):
        text = refusal("aws-cpu", **changes, image=image)
        assert f"slurm-stacks:cluster.{path}" in text
        assert cve in text
        assert f'accept_unmaintained: "{TODAY}"' in text
        accepted = {**changes.get("slurm", {}), "accept_unmaintained": TODAY}
        assert stack("aws-cpu", **{**changes, "image": image, "slurm": accepted})
    assert stack("aws-cpu", **changes), "Debian 13's is maintained"


def test_an_acceptance_holds_for_what_was_published_until_its_day() -> None:
    ubuntu = {"source": "ubuntu-24.04"}
    before = {"accounting": True, "accept_unmaintained": "2026-09-01"}
    assert "slurm.accounting" in refusal("aws-cpu", image=ubuntu, slurm=before)
    after = {"accounting": True, "accept_unmaintained": "2026-09-02"}
    assert stack("aws-cpu", image=ubuntu, slurm=after).cluster.slurm.accept_unmaintained == "2026-09-02"


UBUNTU: dict[str, Any] = {"image": {"source": "ubuntu-24.04"}}
MACHINES: dict[str, Any] = {"local": {"isolation": "container", "suite": "noble"}}
OWN: dict[str, Any] = {"packages": [{"source": "p/slurmctld.deb", "sha256": "0" * 64}]}
REPOSITORY = {
    "repository": {
        "url": "https://apt.example.org/slurm", "suite": "/", "key": "https://apt.example.org/key.asc",
        "fingerprint": "0" * 40,
    }
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "on"),
    [
        *((name, {}, name != "aws-batch") for name in SHIPPED),
        ("local-machines", {}, True),
        ("local-machines", MACHINES, True),
        ("local-machines", {"slurm": {"source": "debian-13"}}, True),
        ("local", {}, False),
        # What nobody maintains has it only where that is accepted, for all that is published.
        ("aws-cpu", UBUNTU, False),
        ("aws-cpu", {"access": {}}, False),
        ("aws-cpu", {**UBUNTU, "slurm": {"accept_unmaintained": "2026-09-01"}}, False),
        ("aws-cpu", {**UBUNTU, "slurm": {"accept_unmaintained": TODAY}}, True),
        # Own packages may lack slurmdbd, without which the controller's boot would fail.
        *(("gcp-cpu", {"slurm": own}, False) for own in (OWN, REPOSITORY)),
        *(("local-machines", {"slurm": own}, False) for own in (OWN, REPOSITORY)),
        # What the file says wins.
        *((name, {"slurm": {"accounting": False}}, False) for name in ("gcp-cpu", "local-machines", "local")),
        ("local", {"slurm": {"accounting": True}}, True),
        *(("gcp-cpu", {"slurm": {**own, "accounting": True}}, True) for own in (OWN, REPOSITORY)),
    ],
)
def test_accounting_is_on_where_machines_boot_and_slurm_is_maintained(
    name: str, changes: dict[str, Any], on: bool
) -> None:
    cluster_design = design(stack(name, **changes), catalog())
    assert cluster_design.slurm.accounting is on
    # A default adds no disk that costs money, and that a cluster which is up would have to get.
    asked = changes.get("slurm", {}).get("accounting", False)
    assert (cluster_design.state() is not None) == (asked and name != "local")


@pytest.mark.parametrize("day", ["2999-01-01", "soon", 20261126, True])
def test_nobody_accepts_what_is_not_known(day: object) -> None:
    assert "slurm.accept_unmaintained" in refusal("aws-cpu", slurm={"accept_unmaintained": day})


def test_the_local_stack_has_this_machines_distribution() -> None:
    assert "local: {suite" in refusal("local", image={"source": "debian-13"})
