"""The cost of a cluster, to the cent, and the parts of it that are not known."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config import load_file, parse
from infra.cost import BudgetOutlook, Cost, budget, cost, reach, sentence, unbilled
from infra.design import design
from infra.instance_types.catalog import catalog
from tests.support.stack_values import REMOVE, STACKS, values

FACTS = catalog()


def of(name: str, changes: dict[str, Any] | None = None) -> Cost:
    return cost(design(parse(values(name, changes), "t"), FACTS))


def parts(total: Cost) -> dict[str, tuple[Any, Any]]:
    return {p["name"]: (p["idle"], p["max"]) for p in total["parts"]}


def test_the_local_stack_is_free() -> None:
    total = of("local")
    assert (total["idle_usd_per_hour"], total["max_usd_per_hour"], total["unknown"]) == (0.0, 0.0, [])


def test_folders_of_this_machine_cost_nothing() -> None:
    total = of("local", {"local": {"isolation": "container"}})
    assert (total["idle_usd_per_hour"], total["max_usd_per_hour"], total["unknown"]) == (0.0, 0.0, [])


def test_pretended_prices_count() -> None:
    total = of("local", {"local.price_hour": 2, "partitions[0].nodes.min": 1})
    assert (total["idle_usd_per_hour"], total["max_usd_per_hour"]) == (2.0, 8.0)


def test_the_parts_of_a_cloud_stack() -> None:
    total = of("aws", {"login": {"count": 2}, "partitions[0].nodes": {"min": 1, "max": 4}})
    found = parts(total)
    assert found["controller"] == (0.096, 0.096)
    assert found["login-1"] == (0.096, 0.096)
    assert found["partition cpu"] == (pytest.approx(0.192), pytest.approx(4 * 0.192))
    assert found["partition gpu"] == (0.0, pytest.approx(4 * 31.212))
    assert found["/home"] == (pytest.approx(50 * 0.08 / 730, abs=1e-6),) * 2
    assert found["/fsx"] == (pytest.approx(1200 * 0.14 / 730, abs=1e-6),) * 2
    # Three hosts and one static node, then eight nodes, with 50 GiB each.
    assert found["root disks"] == (
        pytest.approx(4 * 50 * 0.08 / 730, abs=1e-6),
        pytest.approx(11 * 50 * 0.08 / 730, abs=1e-6),
    )
    assert total["idle_usd_per_hour"] == pytest.approx(sum(p[0] or 0 for p in found.values()))
    assert total["max_usd_per_hour"] == pytest.approx(sum(p[1] or 0 for p in found.values()))
    assert total["unknown"] == []
    assert total["prices_of"] == FACTS.date


def test_no_bill_of_jobs_has_what_is_no_node() -> None:
    changes = {"login": {"count": 2}, "partitions[0].nodes": {"min": 1, "max": 4}}
    total = of("aws", changes)
    expected = total["idle_usd_per_hour"] - 0.192
    assert unbilled(design(parse(values("aws", changes), "test"), FACTS)) == pytest.approx(expected, abs=1e-5)


def test_a_network_costs_something_with_nobody_on_it() -> None:
    """A network on AWS costs a NAT gateway, its address, and each machine's public address."""
    ssh = {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"], "key": "mine"}}
    vpc = {"vpc": "vpc-0a1b2c3d", "public_subnet": "subnet-0a1b2c3d", "private_subnets": ["subnet-1a1b2c3d"]}
    existing: dict[str, Any] = {"network": {"aws": vpc}}
    assert parts(of("aws"))["network"] == (pytest.approx(0.045 + 0.005),) * 2
    assert parts(of("aws", ssh))["network"] == (pytest.approx(0.045 + 2 * 0.005),) * 2
    assert parts(of("aws", {**ssh, "login": {"count": 2}}))["network"][0] == pytest.approx(0.045 + 3 * 0.005)
    assert parts(of("aws", {**ssh, **existing}))["network"] == (pytest.approx(0.005),) * 2
    assert "network" not in parts(of("aws", existing))
    assert "network" not in parts(of("local"))


def test_public_addresses_in_the_place_of_a_nat_gateway() -> None:
    """Each machine has a public address while it is up."""
    nodes = {"partitions[0].nodes": {"min": 1, "max": 10}, "partitions[1].nodes": {"min": 0, "max": 4}}
    without = {**nodes, "aws": {"nat": False}}
    assert parts(of("aws", without))["network"] == (pytest.approx(2 * 0.005), pytest.approx(15 * 0.005))
    (line,) = [part["what"] for part in of("aws", without)["parts"] if part["name"] == "network"]
    assert line == "1 public address and one for each node that is up"


def test_google_asks_for_its_network_by_the_machine() -> None:
    """Cloud NAT costs an address, and an amount for each machine behind it, up to 32. A machine with a public
    address is not behind it."""
    debug = {"partitions[0].nodes": {"min": 1, "max": 4}, "partitions[1].nodes.max": 4}
    assert parts(of("gcp", debug))["network"] == (
        pytest.approx(0.005 + 2 * 0.0014),
        pytest.approx(0.005 + 9 * 0.0014),
    )
    assert parts(of("gcp", {"partitions[0].nodes.max": 500}))["network"][1] == pytest.approx(0.005 + 0.044)
    ssh = {**debug, "access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"]}}
    assert parts(of("gcp", ssh))["network"][0] == pytest.approx(2 * 0.005 + 0.0014)
    existing: dict[str, Any] = {"network": {"gcp": {"network": "lab", "subnetwork": "nodes"}}}
    assert "network" not in parts(of("gcp", {**debug, **existing}))
    assert parts(of("gcp", {**ssh, **existing}))["network"] == (pytest.approx(0.005),) * 2


def test_directories_of_google() -> None:
    scratch = {"kind": "filestore", "tier": "BASIC_SSD", "size_gib": 2560}
    found = parts(of("gcp", {"storage.scratch": scratch}))
    assert found["/scratch"] == (pytest.approx(2560 * 0.30 / 730, abs=1e-6),) * 2
    assert found["/home"] == (pytest.approx(50 * 0.10 / 730, abs=1e-6),) * 2


def test_disks_of_another_type_have_their_own_line_and_price() -> None:
    usual = parts(of("gcp", {"partitions[0].nodes": {"min": 1, "max": 4}}))["root disks"]
    changes = {"partitions[0].nodes": {"min": 1, "max": 4}, "partitions[0].gcp": {"disk_type": "pd-ssd"}}
    found = parts(of("gcp", changes))
    assert found["disks of debug"] == (
        pytest.approx(50 * 0.17 / 730, abs=1e-6),
        pytest.approx(4 * 50 * 0.17 / 730, abs=1e-6),
    )
    assert found["root disks"][1] == pytest.approx(usual[1] - 4 * 50 * 0.10 / 730, abs=1e-6)


def test_googles_local_ssds_are_paid_beside_the_machine() -> None:
    found = parts(of("gcp", {"storage.local_scratch": {}, "partitions[0].nodes": {"min": 1, "max": 4}}))
    disks = [
        facts.local_ssds
        for name in ("n1-standard-2", "n2-standard-4")
        if (facts := FACTS.instance_type(name))
    ]
    assert found["local SSDs"] == (
        pytest.approx(375 * disks[0] * 0.08 / 730, abs=1e-6),
        pytest.approx(375 * (4 * disks[0] + 4 * disks[1]) * 0.08 / 730, abs=1e-6),
    )
    assert "local SSDs" not in parts(of("gcp"))


def test_unknown_prices_are_named_and_not_zero() -> None:
    total = of(
        "aws",
        {
            "partitions[0].instance_type": "t8i.medium",
            "storage": {
                "home": {"kind": "efs"},
                "scratch": {
                    "kind": "fsx_lustre",
                    "size_gib": 4800,
                    "deployment": "PERSISTENT_2",
                    "throughput": 500,
                },
            },
        },
    )
    assert total["unknown"] == [
        "partition cpu (t8i.medium)",
        "/home (efs)",
        "/fsx (fsx_lustre PERSISTENT_2 4800 GiB)",
    ]
    assert parts(total)["partition cpu"] == (0.0, None)
    idle, most = total["idle_usd_per_hour"], total["max_usd_per_hour"]
    assert sentence(total) == (
        f"at least {idle:.2f} USD an hour idle, at least {most:.2f} USD an hour with every node up, price of "
        "t8i.medium, /home (efs), /fsx (fsx_lustre PERSISTENT_2 4800 GiB) unknown"
    )
    enterprise = {"kind": "filestore", "tier": "ENTERPRISE", "size_gib": 1024}
    assert of("gcp", {"storage.scratch": enterprise})["unknown"] == [
        "/scratch (filestore ENTERPRISE 1024 GiB)"
    ]


def test_spot_is_said_to_be_a_ceiling() -> None:
    total = of("aws", {"partitions[0].spot": True})
    assert [p["what"] for p in total["parts"] if p["name"] == "partition cpu"] == ["m5.xlarge, spot at most"]


def test_local_scratch_is_in_the_machines_price() -> None:
    assert "/local_scratch" not in parts(of("aws", {"storage.local_scratch": {}}))


def test_batch_costs_nothing_while_idle_but_its_file_system_and_the_way_out() -> None:
    total = cost(design(load_file(STACKS / "Pulumi.aws-batch.yaml"), FACTS))
    gateway = parts(total)["network"][0]
    assert total["idle_usd_per_hour"] == pytest.approx(3600 * 0.14 / 730 + gateway, abs=1e-6)
    assert 0 < gateway < 0.1
    assert total["max_usd_per_hour"] > 42 * 31.212


def test_prices_of_storage_can_be_given() -> None:
    dear = FACTS.model_copy(update={"storage": {"aws": {"disk": 730.0, "nfs": 730.0}}})
    total = cost(design(parse(values("aws", {"storage": REMOVE}), "t"), FACTS), dear)
    assert parts(total)["/home"] == (50.0, 50.0)


def test_a_sum_that_leaves_out_nodes_is_never_called_the_most() -> None:
    """The cost of the idle cluster is known: nodes with an unknown price are off then."""
    spot = {"instance_type": "t8i.medium", "spot": True}
    total = of("aws", {"partitions[0]": {"name": "a", **spot}, "partitions[1]": {"name": "b", **spot}})
    idle, most = total["idle_usd_per_hour"], total["max_usd_per_hour"]
    assert sentence(total) == (
        f"{idle:.2f} USD an hour idle, at least {most:.2f} USD an hour with every node up, price of "
        "t8i.medium unknown"
    )
    known = of("local")
    assert sentence(known) == "0.00 USD an hour idle, at most 0.00 USD an hour"


def test_a_budget_that_does_not_count_every_node_lasts_at_most_so_long() -> None:
    static = {"name": "s", "instance_type": "t8i.medium", "nodes": {"min": 2, "max": 2}}
    outlook = budget(
        design(parse(values("aws", {"partitions[0]": static, "budget.max_usd": 100}), "t"), FACTS)
    )
    assert outlook is not None
    assert outlook["unknown"] == ["t8i.medium"]
    assert reach(outlook).startswith("The budget of 100 USD lasts at most ")
    hours = {"partitions[0]": static, "budget.max_hours": 8}
    outlook = budget(design(parse(values("aws", hours), "t"), FACTS))
    assert outlook is not None
    assert "at most" not in reach(outlook), "hours are counted without a price"


def test_how_long_a_budget_lasts() -> None:
    """The duration is that of the full cluster: four nodes at 2 USD an hour each."""

    def lasts(changes: dict[str, Any]) -> BudgetOutlook | None:
        return budget(design(parse(values("local", {"local.price_hour": 2} | changes), "t"), FACTS))

    assert lasts({}) is None
    assert lasts({"budget.max_usd": 20}) == {
        "max_usd": 20.0, "max_hours": None, "running_jobs": "keep", "lasts_hours": 2.5,
        "unknown": [],
    }  # fmt: skip
    both = lasts({"budget": {"max_usd": 20, "max_hours": 8, "running_jobs": "cancel"}})
    assert both is not None
    assert (both["lasts_hours"], both["running_jobs"]) == (2.0, "cancel")
    free = lasts({"budget.max_usd": 20, "local.price_hour": 0})
    assert free is not None
    assert free["lasts_hours"] is None
