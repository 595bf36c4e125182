"""What a cluster costs, to the cent, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest
from stack_values import REMOVE, STACKS, values

from infra.config import load_file, parse
from infra.cost import Cost, cost, run_cost
from infra.design import design
from infra.machines import catalog

FACTS = catalog()


def of(name: str, changes: dict[str, Any] | None = None) -> Cost:
    return cost(design(parse(values(name, changes), "t"), FACTS))


def parts(total: Cost) -> dict[str, tuple[float | None, float | None]]:
    return {p["name"]: (p["idle"], p["max"]) for p in total["parts"]}


def test_the_local_stack_is_free() -> None:
    total = of("local")
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


def test_unknown_prices_are_named_and_not_zero() -> None:
    total = of(
        "aws",
        {
            "partitions[0].machine": "p4d.24xlarge",
            "storage": {
                "home": {"kind": "efs"},
                "scratch": {
                    "kind": "fsx_lustre",
                    "size_gib": 4800,
                    "deployment": "PERSISTENT_2",
                    "throughput": 250,
                },
            },
        },
    )
    assert total["unknown"] == [
        "partition cpu (p4d.24xlarge)",
        "/home (efs)",
        "/fsx (fsx_lustre PERSISTENT_2 4800 GiB)",
    ]
    assert parts(total)["partition cpu"] == (0.0, None)
    assert of("gcp", {"storage.scratch": {"kind": "filestore", "size_gib": 1024}})["unknown"] == [
        "/scratch (filestore BASIC_HDD 1024 GiB)"
    ]


def test_spot_is_said_to_be_a_ceiling() -> None:
    total = of("aws", {"partitions[0].spot": True})
    assert [p["what"] for p in total["parts"] if p["name"] == "partition cpu"] == ["m5.xlarge, spot at most"]


def test_local_scratch_is_in_the_machines_price() -> None:
    assert "/local_scratch" not in parts(of("aws", {"storage.local_scratch": {}}))


def test_batch_costs_nothing_while_idle_but_its_file_system() -> None:
    total = cost(design(load_file(STACKS / "Pulumi.aws-batch.yaml"), FACTS))
    assert total["idle_usd_per_hour"] == pytest.approx(3600 * 0.14 / 730, abs=1e-6)
    assert total["max_usd_per_hour"] > 42 * 31.212


def test_what_a_run_costs() -> None:
    partition = design(parse(values("gcp"), "t"), FACTS).partition("debug")
    assert run_cost(partition, 4, 1800) == pytest.approx(4 * (0.095 + 2.48) / 2)
    unknown = design(parse(values("aws", {"partitions[0].machine": "p4d.24xlarge"}), "t"), FACTS).partition(
        "cpu"
    )
    assert run_cost(unknown, 4, 1800) is None


def test_prices_of_storage_can_be_given() -> None:
    dear = FACTS.model_copy(update={"storage": {"aws": {"disk": 730.0, "nfs": 730.0}}})
    total = cost(design(parse(values("aws", {"storage": REMOVE}), "t"), FACTS), dear)
    assert parts(total)["/home"] == (50.0, 50.0)
