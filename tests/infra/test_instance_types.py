"""The snapshot of facts: complete, consistent, overridable."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import moto
import pytest

from cli.providers.aws import types
from infra.config.rules.instance_types import is_arm
from infra.instance_types.catalog import Override, catalog, series

FACTS = catalog()


def test_the_machines_of_the_published_systems_are_there() -> None:
    needed = (
        "m4.large c4.2xlarge m5.8xlarge g4dn.xlarge g5.12xlarge p3dn.24xlarge p4de.24xlarge trn1.32xlarge"
    )
    for name in [*needed.split(), "n1-standard-2", "local.small", "local.medium"]:
        assert FACTS.instance_type(name) is not None, name


@pytest.mark.parametrize(
    ("name", "vcpus", "gib", "devices", "cards", "efa"),
    [
        ("p3dn.24xlarge", 96, 768, ("v100", 8), 1, 1),
        ("p4d.24xlarge", 96, 1152, ("a100", 8), 4, 4),
        ("p4de.24xlarge", 96, 1152, ("a100", 8), 4, 4),
        ("p5.48xlarge", 192, 2048, ("h100", 8), 32, 32),
        ("trn1.32xlarge", 128, 512, ("trainium", 16), 8, 8),
        ("trn1n.32xlarge", 128, 512, ("trainium", 16), 16, 16),
        ("g5.8xlarge", 32, 128, ("a10g", 1), 1, 1),
        ("g5.12xlarge", 48, 192, ("a10g", 4), 1, 1),
        ("g4dn.xlarge", 4, 16, ("t4", 1), 1, 0),
        ("m5.8xlarge", 32, 128, None, 1, 0),
    ],
)
def test_published_facts(
    name: str, vcpus: int, gib: int, devices: tuple[str, int] | None, cards: int, efa: int
) -> None:
    machine = FACTS.machines[name]
    have = (machine.accelerator.type, machine.accelerator.count) if machine.accelerator else None
    assert (machine.vcpus, machine.memory_mib, have) == (vcpus, gib * 1024, devices)
    assert (machine.network_cards, machine.efa) == (cards, efa)


def test_the_snapshot_agrees_with_itself() -> None:
    for name, machine in FACTS.machines.items():
        # EC2 lists no placement group for VT1, which nevertheless has EFA.
        assert machine.efa == 0 or machine.placement or name == "vt1.24xlarge", name
        assert machine.efa <= machine.network_cards, name
        regions = set(machine.regions or machine.price)
        assert set(machine.price) <= regions, name
    for name, retired in FACTS.retired.items():
        assert name not in FACTS.machines
        assert set(retired.replaced_by) <= set(FACTS.machines)


def test_placement_as_the_clouds_have_it() -> None:
    for name, machine in FACTS.machines.items():
        if machine.provider == "gcp":
            assert machine.placement == (not name.startswith(("n1-", "e2-", "t2d-"))), name
    for name in ("t3.medium", "t2.micro", "m1.small"):
        assert not FACTS.machines[name].placement
    for name in ("m4.large", "c5n.18xlarge", "hpc7a.96xlarge", "p5en.48xlarge", "trn2.48xlarge"):
        assert FACTS.machines[name].placement


@pytest.mark.parametrize(
    ("name", "region", "accelerator", "spot", "price"),
    [
        ("m4.large", "eu-central-1", None, False, 0.12),
        ("m4.large", "sa-east-1", None, False, None),
        ("m4.large", None, None, False, None),
        ("p3dn.24xlarge", "eu-west-1", ("v100", 8), False, 33.711),
        ("p5e.48xlarge", "us-east-2", None, False, None),
        ("n1-standard-2", "europe-west4", None, False, 0.104584),
        ("n1-standard-2", "europe-west4", ("v100", 2), False, 0.104584 + 2 * 2.604),
        ("n1-standard-2", "us-central1", ("v100", 2), True, 0.095 + 2 * 1.2338),
        ("n1-standard-2", "us-central1", ("t4", 1), True, 0.095 + 0.1915),
        ("n1-standard-2", "us-central1", ("a100", 1), False, None),
        ("nowhere.large", "us-east-1", None, False, None),
    ],
)
def test_prices(
    name: str, region: str | None, accelerator: tuple[str, int] | None, spot: bool, price: float | None
) -> None:
    assert FACTS.price(name, region, accelerator=accelerator, spot=spot) == pytest.approx(price)


def test_gpus_attach_to_their_families_only() -> None:
    assert FACTS.attachable_to("n1-standard-2", "v100") is FACTS.attachable["v100"]
    assert FACTS.attachable_to("n2-standard-2", "v100") is None
    assert FACTS.attachable_to("n1-standard-2", "h100") is None


def test_near_names_are_of_the_same_provider() -> None:
    assert FACTS.near("p4de.24xlage", "aws")[0] == "p4de.24xlarge"
    assert FACTS.near("n1-standart-2", "gcp")[0] == "n1-standard-2"
    assert FACTS.near("n1-standard-2", "aws") == []


def test_overrides_win_and_leave_the_snapshot_alone() -> None:
    before = dict(FACTS.machines), dict(FACTS.retired)
    mine = FACTS.with_overrides(
        {
            "p3dn.24xlarge": Override(price_hour=20.0),
            "new.large": Override(vcpus=4, memory_mib=8192, efa=2),
            "p3.2xlarge": Override(vcpus=8, memory_mib=62464),
        },
        "aws",
    )
    assert mine.price("p3dn.24xlarge", "us-east-1") == 20.0
    assert mine.machines["p3dn.24xlarge"].accelerator == FACTS.machines["p3dn.24xlarge"].accelerator
    assert (mine.machines["new.large"].provider, mine.machines["new.large"].efa) == ("aws", 2)
    assert "p3.2xlarge" not in mine.retired
    assert (dict(FACTS.machines), FACTS.retired) == before
    with pytest.raises(ValueError, match=r"new\.small"):
        FACTS.with_overrides({"new.small": Override(vcpus=1)}, "aws")


def of_moto() -> dict[str, dict[str, Any]]:
    """EC2's own description of its types, as moto carries it."""
    file = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    found: dict[str, dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def test_every_type_of_ec2_is_known_or_refused_with_a_reason() -> None:
    """ARM is refused by the name alone, so future ARM types are refused, too."""
    described = of_moto()
    assert len(described) > 900
    for name, one in described.items():
        known = (name in FACTS.machines, name in FACTS.unusable, is_arm(name, "aws"))
        x86 = "x86_64" in one["ProcessorInfo"]["SupportedArchitectures"]
        assert known.count(True) == 1 if name != "mac1.metal" else not any(known), name
        assert x86 != known[2] or name == "mac1.metal", name


@pytest.mark.parametrize(
    ("name", "vcpus", "gib", "devices", "cards", "efa", "nvme"),
    [
        # The source is Amazon EC2's pages of instance types (accelerated computing, HPC), not moto.
        ("p5en.48xlarge", 192, 2048, ("h200", 8), 16, 16, 28312),
        ("p6-b200.48xlarge", 192, 2048, ("b200", 8), 8, 8, 28312),
        ("g6.12xlarge", 48, 192, ("l4", 4), 1, 1, 3501),
        ("g6e.48xlarge", 192, 1536, ("l40s", 8), 4, 4, 7078),
        ("inf2.48xlarge", 192, 768, ("inferentia2", 12), 1, 0, 0),
        ("trn2.48xlarge", 192, 2048, ("trainium2", 16), 16, 16, 7078),
        ("hpc7a.96xlarge", 192, 768, None, 2, 2, 0),
        ("c7i.8xlarge", 32, 64, None, 1, 0, 0),
    ],
)
def test_machines_that_a_user_would_have_had_to_describe(
    name: str, vcpus: int, gib: int, devices: tuple[str, int] | None, cards: int, efa: int, nvme: int
) -> None:
    machine = FACTS.machines[name]
    have = (machine.accelerator.type, machine.accelerator.count) if machine.accelerator else None
    assert (machine.vcpus, machine.memory_mib, have) == (vcpus, gib * 1024, devices)
    assert (machine.network_cards, machine.efa, machine.nvme_gib) == (cards, efa, nvme)


@pytest.mark.parametrize(
    ("name", "vcpus", "gib", "devices", "nvme", "placement"),
    [
        ("a2-highgpu-8g", 96, 680, ("a100", 8), 0, True),
        ("a2-ultragpu-2g", 24, 340, ("a100_80gb", 2), 750, True),
        ("a3-highgpu-8g", 208, 1872, ("h100_80gb", 8), 6000, True),
        ("a3-megagpu-8g", 208, 1872, ("h100_mega_80gb", 8), 6000, True),
        ("c2d-standard-112", 112, 448, None, 0, True),
        ("c3-standard-88-lssd", 88, 352, None, 6000, True),
        ("e2-standard-4", 4, 16, None, 0, False),
        ("g2-standard-24", 24, 96, ("l4", 2), 0, True),
        ("n2-standard-128", 128, 512, None, 0, True),
    ],
)
def test_googles_series(
    name: str, vcpus: int, gib: int, devices: tuple[str, int] | None, nvme: int, placement: bool
) -> None:
    """The sources of prices.yaml also have vCPUs, memory, GPUs and SSDs, which must agree with the table."""
    machine = FACTS.machines[name]
    have = (machine.accelerator.type, machine.accelerator.count) if machine.accelerator else None
    assert (machine.vcpus, machine.memory_mib, have) == (vcpus, gib * 1024, devices)
    assert (machine.nvme_gib, machine.placement) == (nvme, placement)


@pytest.mark.parametrize(
    ("name", "sockets"),
    [
        ("p4d.24xlarge", 2),
        ("g5.48xlarge", 2),
        ("g5.24xlarge", 1),
        ("m5.large", 1),
        ("n2-standard-16", 1),
        ("n2-standard-32", 2),
        ("n2d-standard-64", 1),
        ("n2d-highmem-64", 2),
        ("n2d-highmem-16", 1),
        ("c2-standard-60", 2),
        ("c3-standard-44", 1),
        ("c3-standard-88", 2),
        ("c3d-standard-360", 2),
        ("n1-standard-96", 2),
        ("e2-standard-4", 1),
        ("local.medium", 1),
    ],
)
def test_sockets(name: str, sockets: int) -> None:
    """Transcribed: aws-ofi-nccl's topology files, and slurm-gcp's function `sockets` (by_hand.yaml)."""
    assert FACTS.sockets(name) == sockets


def test_local_ssds_of_n2_by_its_vcpus() -> None:
    counts = {vcpus: FACTS.machines[f"n2-standard-{vcpus}"].local_ssds for vcpus in (2, 8, 16, 32, 80, 128)}
    assert counts == {2: 1, 8: 1, 16: 2, 32: 4, 80: 8, 128: 16}


def test_series_of_google_that_no_machine_here_can_be_of() -> None:
    for name in ("n4-standard-2", "c4-standard-8", "a4-highgpu-8g"):
        assert "Hyperdisks only" in str(series(name).unusable)
        assert name not in FACTS.machines
    assert series("z9-standard-2").unusable is None


@pytest.mark.parametrize(
    ("name", "region", "usd"),
    [
        # One type's prices in three regions, by two sources (skypilot's catalog; karpenter's for us-east-1).
        ("m7i.xlarge", "us-east-1", 0.2016),
        ("m7i.xlarge", "eu-central-1", 0.2415),
        ("g5.48xlarge", "eu-central-1", 20.3681),
        ("p5.48xlarge", "eu-north-1", 58.8928),
        ("a3-highgpu-8g", "europe-west4", 112.540479),
        ("c6a.xlarge", "us-east-1", 0.153),
        # The price is unknown, and no other region's is taken.
        ("c6a.xlarge", "eu-west-1", None),
        ("p5.48xlarge", "sa-east-1", None),
        ("n2d-standard-4", "europe-west4", None),
    ],
)
def test_prices_are_the_regions_own(name: str, region: str, usd: float | None) -> None:
    assert FACTS.price(name, region) == usd


def test_a_region_that_the_tables_do_not_know_refuses_no_machine() -> None:
    assert FACTS.offered("p3dn.24xlarge", "us-east-1")
    assert not FACTS.offered("p3dn.24xlarge", "eu-central-1")
    assert FACTS.offered("p3dn.24xlarge", "mx-central-1"), "newer than the table"


def test_ec2_types_that_cannot_be_used_say_why() -> None:
    whys = {name: FACTS.unusable[name].why for name in ("g6f.large", "inf1.xlarge", "p6-b300.48xlarge")}
    assert "a part of a GPU" in whys["g6f.large"]
    assert "take inf2" in whys["inf1.xlarge"]
    assert "no EFA interface" in whys["p6-b300.48xlarge"]
    amd = {"Count": 1, "Manufacturer": "AMD", "Name": "Radeon Pro V520", "MemoryInfo": {"SizeInMiB": 8192}}
    g4ad = {**of_moto()["g4dn.xlarge"], "InstanceType": "g4ad.xlarge", "GpuInfo": {"Gpus": [amd]}}
    said = types.parse([g4ad, of_moto()["m7g.large"]])
    assert not said.machines
    assert "no accelerators" in said.unusable["g4ad.xlarge"].why
    assert "arm64" in said.unusable["m7g.large"].why
