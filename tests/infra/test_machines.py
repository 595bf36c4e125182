"""The snapshot of facts: complete, consistent, overridable."""

from __future__ import annotations

import pytest

from infra.machines import Override, catalog

FACTS = catalog()


def test_the_machines_of_the_published_systems_are_there() -> None:
    needed = (
        "m4.large c4.2xlarge m5.8xlarge g4dn.xlarge g5.12xlarge p3dn.24xlarge p4de.24xlarge trn1.32xlarge"
    )
    for name in [*needed.split(), "n1-standard-2", "local.small", "local.medium"]:
        assert FACTS.machine(name) is not None, name


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
        assert machine.efa == 0 or machine.placement, name
        assert machine.efa <= machine.network_cards, name
        regions = set(machine.regions or machine.price)
        assert set(machine.price) <= regions, name
    for name, retired in FACTS.retired.items():
        assert name not in FACTS.machines
        assert set(retired.replaced_by) <= set(FACTS.machines)


def test_placement_as_the_clouds_have_it() -> None:
    for name, machine in FACTS.machines.items():
        if machine.provider == "gcp":
            assert machine.placement == (not name.startswith(("n1-", "e2-"))), name
        elif machine.provider == "aws":
            assert machine.placement == (not name.startswith("t3.")), name


@pytest.mark.parametrize(
    ("name", "region", "accelerator", "spot", "price"),
    [
        ("m4.large", "eu-central-1", None, False, 0.12),
        ("m4.large", "sa-east-1", None, False, 0.10),
        ("m4.large", None, None, False, 0.10),
        ("p3dn.24xlarge", "eu-west-1", ("v100", 8), False, 31.212),
        ("p4d.24xlarge", "us-east-1", None, False, None),
        ("n1-standard-2", "europe-west4", None, False, 0.1046),
        ("n1-standard-2", "europe-west4", ("v100", 2), False, 0.1046 + 2 * 2.604),
        ("n1-standard-2", "us-central1", ("v100", 2), True, 0.095 + 2 * 0.992),
        ("n1-standard-2", "us-central1", ("t4", 1), True, 0.095 + 0.14),
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
    before = FACTS.model_dump()
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
    assert FACTS.model_dump() == before
    with pytest.raises(ValueError, match=r"new\.small"):
        FACTS.with_overrides({"new.small": Override(vcpus=1)}, "aws")
