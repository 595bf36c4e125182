"""Who shares this host's cores, in words: for `plan`, `run` and `doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli.commands import shared_cores
from cli.providers.aws.provider import AwsProvider
from cli.providers.local import host_checks
from cli.providers.local.provider import LocalProvider
from infra.config import parse
from infra.design import benchmark_design, design
from infra.instance_types.catalog import catalog
from infra.program import clusters
from infra.program.clusters import Cluster
from infra.program.stack import Stack
from localcloud.cores import Cores, Use, uses
from operations.local.run_directory import RunDirectory
from tests.support.checkout import ROOT
from tests.support.stack_values import values

STACK = Stack(ROOT, "local")
ME = os.getuid()


def own_run() -> str:
    return RunDirectory.of(STACK).path.name[:24]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Use]:
    """Who has which core, on a host of two."""
    made: list[Use] = []
    monkeypatch.setattr(host_checks, "uses", lambda: made)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    return made


def test_others_are_named_with_their_cores(seen: list[Use]) -> None:
    seen += [
        Use(0, ME, own_run(), 1, "local"),
        Use(0, ME, "elsewhere", 2, "local"),
        Use(1, ME, "elsewhere", 1, "local"),
        Use(1, 0, "roots", 1, "big"),
        Use(1, 4_000_000_001, "theirs", 1, "other"),
    ]
    said = host_checks.neighbours(STACK)
    assert "cluster local of yours has nodes on cores 0,1" in said
    assert "cluster other of user 4000000001 has nodes on core 1" in said
    assert any(text.startswith("cluster big of ") for text in said)
    assert len(said) == 3, "and not this stack's own"


def test_of_clusters_of_one_name_each_is_told_by_its_checkout(
    seen: list[Use], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of this user name the checkouts; those of others are not read."""
    one, two = (
        Cluster(letter * 32, "local", f"/srv/{letter}", "local", 1.0, [], None) for letter in ("a", "b")
    )
    monkeypatch.setattr(clusters, "recorded", lambda: [one, two])
    seen += [Use(0, ME, one.id[:24], 1, "local"), Use(1, ME, two.id[:24], 1, "local")]
    seen += [Use(1, 4_000_000_001, one.id[:24], 1, "local")]
    assert host_checks.neighbours(STACK) == [
        "cluster local of yours (stack local in /srv/a) has nodes on core 0",
        "cluster local of yours (stack local in /srv/b) has nodes on core 1",
        "cluster local of user 4000000001 has nodes on core 1",
    ]


def test_plan_and_run_say_with_whom(seen: list[Use]) -> None:
    config = parse(values("local", {}), "local")
    cluster = design(config, catalog())
    training = benchmark_design(config, cluster)
    assert shared_cores.of_benchmark(LocalProvider(), STACK, training) == []
    assert shared_cores.of_runs(LocalProvider(), STACK, cluster, [("debug", 1), ("debug", 2)]) == []
    (few,) = shared_cores.of_runs(LocalProvider(), STACK, cluster, [("debug", 1), ("debug", 4), ("debug", 4)])
    assert few.startswith("4 × local.small need 4 cores, and this machine has 2 cores: the nodes share them")
    assert "no speed-up is computed" in few
    seen.append(Use(1, ME, "elsewhere", 1, "other"))
    (text,) = shared_cores.of_benchmark(LocalProvider(), STACK, training)
    assert text == "benchmark: cluster other of yours has nodes on core 1, and shares them with its nodes"
    assert shared_cores.of_benchmark(LocalProvider(), STACK, None) == []
    assert len(shared_cores.of_runs(LocalProvider(), STACK, cluster, [("debug", 4)])) == 2
    cloud = parse(values("aws", {}), "local")
    cluster_design = design(cloud, catalog())
    assert shared_cores.of_benchmark(AwsProvider(), STACK, benchmark_design(cloud, cluster_design)) == []
    assert (
        shared_cores.of_runs(AwsProvider(), STACK, cluster_design, [(cluster_design.partitions[0].name, 400)])
        == []
    )


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"cores": 2, "cores_shared": False, "cores_others": 0.02}, False),
        ({"cores": 2, "cores_shared": False, "cores_others": 0.5}, True),
        ({"cores": 2, "cores_shared": True, "cores_others": None}, True),
        ({"values": {}}, False),
    ],
)
def test_a_run_that_was_not_alone_names_those_that_are_there(
    seen: list[Use], record: dict[str, Any], named: bool
) -> None:
    assert shared_cores.after(LocalProvider(), STACK, [record]) is None
    seen.append(Use(1, ME, "elsewhere", 1, "other"))
    assert shared_cores.after(AwsProvider(), STACK, [record]) is None, "each node is a machine of its own"
    said = "At present cluster other of yours has nodes on core 1" if named else None
    assert shared_cores.after(LocalProvider(), STACK, [record]) == said


def test_what_an_agent_claims_is_what_is_seen(tmp_path: Path) -> None:
    core = 60_000 + os.getpid()
    agent = Cores("elsewhere", [core])
    agent.take("m", 1, "other")
    try:
        mine = [use for use in uses() if use.core == core]
        assert host_checks.neighbours(STACK, mine) == [f"cluster other of yours has nodes on core {core}"]
    finally:
        agent.close()
