"""Partitions with the nodes of another one: what cannot be is one mistake, and what they say arrives."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config import parse
from infra.design import benchmark_design, design
from infra.instance_types.catalog import catalog
from node.design.model import ClusterDesign, SharedPartition
from tests.support.stack_parts import Refused, check_refusal, check_sentences, each_refusal
from tests.support.stack_values import mistakes, values

SPOT = {"name": "spot", "spot": True}
ONDEMAND = {"name": "ondemand"}


def urgent(more: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    return {"partitions[1]": {"name": "urgent", "nodes_of": "debug", **given}, **(more or {})}


# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    ("local", urgent(nodes_of="debgu"), "partitions[1].nodes_of", "nodes-of.unknown"),
    ("local", urgent(nodes_of="urgent"), "partitions[1].nodes_of", "nodes-of.unknown"),
    ("local", urgent({"partitions[2]": {"name": "last", "nodes_of": "urgent"}}),
     "partitions[2].nodes_of", "nodes-of.unknown"),
    ("local", {"partitions": [{"name": "a", "nodes_of": "b"}], "@enabled": False},
     "partitions[0].nodes_of", "nodes-of.unknown"),
    ("local", urgent(instance_type="local.small", spot=True, weight=3),
     "partitions[1].instance_type", "nodes-of.own-keys"),
    ("local", urgent(pools=[SPOT]), "partitions[1].pools", "nodes-of.own-keys"),
    ("local", urgent(nodes={"max": 3}), "partitions[1].nodes", "nodes-of.own-keys"),
    ("local", urgent(name="default"), "partitions[1].name", "partition.name-reserved"),
    ("local", urgent(name="debug"), "partitions[1].name", "partition.name-twice"),
    ("local", urgent({"partitions[0].pools": [SPOT, ONDEMAND]}, name="debug-spot"),
     "partitions[1].name", "nodes-of.name-of-pool"),
    ("local", urgent({"@partition": "urgent", "@nodes": 9}), "@nodes", "benchmark.too-many-nodes"),
    ("local", urgent(settings={"Nodes": "ALL"}), "partitions[1].settings.Nodes", "settings.owned"),
    ("local", urgent({"partitions[0].default": True}, default=True),
     "partitions[1].default", "partition.default-twice"),
]  # fmt: skip


@each_refusal(REFUSED)
def test_an_impossible_combination_is_one_mistake(
    stack: str, changes: dict[str, Any], path: str, code: str
) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)


def made(changes: dict[str, Any]) -> ClusterDesign:
    given = values("local", changes)
    assert mistakes(given) == []
    return design(parse(given, "test"), catalog())


def test_a_partition_with_the_nodes_of_another_says_all_of_its_jobs_and_nothing_of_machines() -> None:
    terms = {"time_limit": "1:00:00", "exclusive": True, "settings": {"PriorityTier": 10}, "default": True}
    found = made(urgent({"partitions[0].pools": [SPOT, ONDEMAND]}, **terms))
    assert found.shared_partitions == (
        SharedPartition("urgent", "debug", "01:00:00", True, settings={"PriorityTier": "10"}, default=True),
    )
    assert [p.name for p in found.partitions] == ["debug-spot", "debug-ondemand"], "no machines of its own"
    assert [p.default for p in found.partitions] == [False, False]
    assert found.slurm_partitions()["urgent"] == found.slurm_partitions()["debug"]
    assert found.nodes_of("urgent") == found.nodes_of("debug,urgent") == found.nodes_of("debug")
    assert found.partition("urgent").name == "debug-spot"


def test_the_first_partition_is_the_default_also_without_machines() -> None:
    owner = values("local")["slurm-stacks:cluster"]["partitions"][0]
    found = made({"partitions": [{"name": "urgent", "nodes_of": "debug"}, owner]})
    assert (found.default_partition(), found.partitions[0].default) == ("urgent", False)


def test_a_training_runs_in_a_partition_with_the_nodes_of_another() -> None:
    given = values("local", urgent({"@partition": "urgent", "@enabled": True}))
    config = parse(given, "test")
    training = benchmark_design(config, design(config, catalog()))
    assert training is not None
    assert training.partition == "urgent"
