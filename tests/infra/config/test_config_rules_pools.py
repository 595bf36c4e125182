"""Pools of partitions: impossible ones are one mistake each; a pool has what its partition says."""

from __future__ import annotations

from typing import Any

import pytest
from annotated_types import Le

from infra.config import parse
from infra.config.cluster import ClusterConfig
from infra.config.partitions import MOST_POOLS, MOST_WEIGHT, STEP, PartitionConfig
from infra.design import design
from infra.instance_types.catalog import catalog
from node.slurm.control import LAST_WEIGHT
from tests.support.stack_parts import Refused, check_refusal, check_sentences, each_refusal
from tests.support.stack_values import mistakes, values

SPOT = {"name": "spot", "spot": True}
ONDEMAND = {"name": "ondemand"}
SMALL = {"instance_type": "local.small"}
V100 = {"name": "v100", "instance_type": "p3dn.24xlarge"}
CPUS = {"name": "cpus", "instance_type": "c5.xlarge"}


def pools(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"partitions[0].pools": list(given), **more}


# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    ("local", pools(SPOT, SPOT), "partitions[0].pools[1].name", "pools.name-twice"),
    ("local", {"partitions[0].mixed": True}, "partitions[0].mixed", "pools.mixed-alone"),
    ("local", pools(SPOT, {"name": "gpu", "accelerator": {"type": "v100", "count": 1}}),
     "partitions[0].pools[1].accelerator", "pools.accelerators"),
    ("aws", pools(V100, CPUS), "partitions[0].pools[1].instance_type", "pools.accelerators"),
    ("aws", pools({"name": "arm", "instance_type": "c7g.xlarge"}, ONDEMAND),
     "partitions[0].pools[0].instance_type", "instance-type.arm"),
    ("aws", pools({**CPUS, "spot": True, "reservation": "cr-0123456789abcdef0"}, ONDEMAND),
     "partitions[0].pools[0].reservation", "reservation.spot"),
    ("aws", pools({"name": "a", "instance_type": "c5n.18xlarge", "aws": {"efa": True}},
                      {"name": "b", "instance_type": "c5n.18xlarge"},
                      **{"partitions[0].placement": "cluster", "network.zones": ["us-east-1a"]}),
     "partitions[0].pools[1].name", "pools.efa"),
    ("local", pools(SPOT, ONDEMAND, **{"partitions[1]": SMALL | {"name": "debug-spot"}}),
     "partitions[1].name", "partition.nodes-of-pool"),
    ("local", pools(SPOT | {"weight": 20}, ONDEMAND), "partitions[0].pools[0].weight", "pools.weight"),
    ("local", pools(SPOT, ONDEMAND | {"weight": 10}), "partitions[0].pools[1].weight", "pools.weight"),
    ("local", pools(SPOT | {"weight": 9}, ONDEMAND | {"weight": 8}, **{"partitions[0].weight": 5}),
     "partitions[0].pools[1].weight", "pools.weight"),
    ("local", pools(SPOT | {"features": ["fast", "ondemand"]}, ONDEMAND),
     "partitions[0].pools[0].features[1]", "features.own"),
    ("local", {"partitions[0].features": ["spot"]}, "partitions[0].features[0]", "features.own"),
    ("aws", {"partitions[0].instance_type": "c5.metal", "partitions[0].threads_per_core": 1},
     "partitions[0].threads_per_core", "threads.unsupported"),
    ("aws", pools(CPUS, {**CPUS, "name": "b", "instance_type": "c6i.metal", "threads_per_core": 1}),
     "partitions[0].pools[1].threads_per_core", "threads.unsupported"),
    ("gcp", {"partitions[1].instance_type": "e2-medium", "partitions[1].threads_per_core": 1},
     "partitions[1].threads_per_core", "threads.unsupported"),
    ("local", {"partitions[0].threads_per_core": 1},
     "partitions[0].threads_per_core", "threads.unsupported"),
    ("local", {"partitions[0].threads_per_core": 2}, "partitions[0].threads_per_core", "value.choice"),
    ("aws", {"partitions[0].instance_type": "c5.4xlarge", "partitions[0].threads_per_core": 1,
             "partitions[0].aws": {"launch_template_overrides": {
                 "cpu_options": {"core_count": 4, "threads_per_core": 2}}}},
     "partitions[0].aws.launch_template_overrides.cpu_options.threads_per_core", "threads.differ"),
    ("gcp", {"partitions[1].instance_type": "n2-standard-8", "partitions[1].threads_per_core": 1,
             "partitions[1].gcp": {"instance_template_overrides": {
                 "advanced_machine_features": {"threads_per_core": 2}}}},
     "partitions[1].gcp.instance_template_overrides.advanced_machine_features.threads_per_core",
     "threads.differ"),
    ("local", {"partitions[0].features": ["a&b"]}, "partitions[0].features[0]", "value.form"),
    ("local", pools(SPOT, ONDEMAND, local={"capacity": {"debug-spot": 1}}),
     "local.capacity.debug-spot", "local.pool-unknown"),
    ("local", pools(SPOT, ONDEMAND, local={"capacity": {"debug": 1}}),
     "local.capacity.debug", "local.pool-unknown"),
    ("aws", pools(CPUS, {**ONDEMAND, "max": 5000}, **{"network.cidr": "10.0.0.0/22"}),
     "network.cidr", "network.too-small"),
    ("aws", pools({**CPUS, "purchase": "spot"}, CPUS | {"name": "od"}),
     "partitions[0].pools[0].purchase", "key.of-another-tool"),
    ("aws", pools({**CPUS, "CapacityType": "SPOT"}, CPUS | {"name": "od"}),
     "partitions[0].pools[0].CapacityType", "key.of-another-tool"),
    ("aws", pools({**CPUS, "instance_types": ["c5.large", "c5.xlarge"]}, CPUS | {"name": "od"}),
     "partitions[0].pools[0].instance_types", "key.of-another-tool"),
    ("aws", pools({**CPUS, "nodes": {"max": 3}}, CPUS | {"name": "od"}),
     "partitions[0].pools[0].nodes", "key.of-another-tool"),
    ("local", pools({"name": "s" * 60}, ONDEMAND), "partitions[0].pools[0].name", "partition.name-too-long"),
    ("local", pools(SPOT, ONDEMAND, **{"partitions[0].settings": {"LLN": "yes"}}),
     "partitions[0].settings.LLN", "settings.past-pools"),
    ("local", pools(SPOT, ONDEMAND, **{"slurm.settings": {"TopologyParam": "TopoOptional"}}),
     "slurm.settings.TopologyParam", "settings.past-pools"),
    ("local", pools(SPOT, ONDEMAND, **{"slurm.settings": {"SelectTypeParameters": "CR_LLN"}}),
     "slurm.settings.SelectTypeParameters", "settings.past-pools"),
]  # fmt: skip


@each_refusal(REFUSED)
def test_an_impossible_combination_is_one_mistake(
    stack: str, changes: dict[str, Any], path: str, code: str
) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)


@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        ("local", pools(SPOT, ONDEMAND)),
        (
            "local",
            pools(
                SPOT,
                {**ONDEMAND, "zones": ["a"]},
                local={"capacity": {"debug/spot": 0, "debug/ondemand/a": 1}},
            ),
        ),
        ("local", pools(SPOT, ONDEMAND, **{"partitions[0].mixed": True})),
        ("aws", pools({**CPUS, "spot": True}, CPUS | {"name": "ondemand"}, {**CPUS, "name": "c"})),
        ("gcp", {"partitions[1].pools": [SPOT, ONDEMAND]}),
    ],
)
def test_what_is_possible_is_accepted(stack: str, changes: dict[str, Any]) -> None:
    assert mistakes(values(stack, changes)) == []


def test_weights_follow_the_order_of_the_pools_and_stay_below_that_of_a_node_to_be_used_last() -> None:
    chosen = pools(SPOT, ONDEMAND | {"weight": 500, "features": ["paid"]}, {"name": "last"},
                   **{"partitions[0].weight": 40, "partitions[0].features": ["a", "b"]})  # fmt: skip
    chosen["partitions[0].pools"][2]["weight"] = 999
    spot, ondemand, last = design(parse(values("local", chosen), "test"), catalog()).partitions
    assert [p.weight for p in (spot, ondemand, last)] == [40, 500, 999]
    assert [p.features for p in (spot, ondemand, last)] == [("a", "b"), ("paid",), ("a", "b")]
    (most,) = (field.le for field in PartitionConfig.model_fields["weight"].metadata if isinstance(field, Le))
    assert int(str(most)) + STEP * (MOST_POOLS - 1) <= MOST_WEIGHT < LAST_WEIGHT


def test_what_a_pool_leaves_out_is_the_partitions() -> None:
    config = ClusterConfig.model_validate(
        {
            "name": "c",
            "provider": "aws",
            "partitions": [
                {
                    "name": "train",
                    "zones": ["us-east-1a"],
                    "nodes": {"min": 1, "max": 7},
                    "pools": [
                        {"name": "spot", "instance_type": "c5.xlarge", "spot": True, "max": 3},
                        {"name": "big", "instance_type": "c5.4xlarge", "zones": ["us-east-1b"]},
                        {"name": "last"},
                    ],
                }
            ],
        }
    )
    spot, big, last = (group for _, group in config.groups())
    assert [group.name for group in (spot, big, last)] == ["train-spot", "train-big", "train-last"]
    assert [group.instance_type for group in (spot, big, last)] == ["c5.xlarge", "c5.4xlarge", "c5.xlarge"]
    assert [group.spot for group in (spot, big, last)] == [True, False, False]
    assert [group.zones for group in (spot, big, last)] == [["us-east-1a"], ["us-east-1b"], ["us-east-1a"]]
    assert [(group.nodes.min, group.nodes.max) for group in (spot, big, last)] == [(1, 3), (0, 7), (0, 7)]
    assert [at for at, _ in config.groups()] == [("partitions", 0, "pools", n) for n in range(3)]
