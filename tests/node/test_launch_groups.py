"""Slurm's resume requests become launch calls."""

from __future__ import annotations

import dataclasses

from node.design.model import ClusterDesign, Host, Partition
from node.elastic.launch_groups import launch_groups
from node.slurm.resume_request import ResumeJob, ResumeRequest

DESIGN = ClusterDesign(
    name="t",
    stack="t",
    provider="local",
    isolation="process",
    hosts=(Host("controller", "controller", ("controller",), "local.small", 1),),
    partitions=(
        Partition("debug", "local.small", 1, 500, 0, 20),
        Partition("gpu", "local.small", 1, 500, 0, 4),
    ),
    mounts=(),
)


def ask(all_nodes: str, *jobs: tuple[int, str]) -> ResumeRequest:
    return ResumeRequest(
        tuple(all_nodes.split()), tuple(ResumeJob(number, tuple(nodes.split())) for number, nodes in jobs)
    )


def test_a_job_of_several_nodes_is_whole_and_jobs_of_one_node_share_a_call() -> None:
    request = ask(
        "debug-0 debug-1 debug-2 debug-3 debug-4", (7, "debug-0 debug-1"), (8, "debug-2"), (9, "debug-3")
    )
    calls, strangers = launch_groups(request, DESIGN, "r1")
    assert strangers == []
    assert [(c.nodes, c.all_or_nothing, c.job) for c in calls] == [
        (("debug-0", "debug-1"), True, 7),
        # debug-4 is wanted without a job: it is static, or a person powers it up.
        (("debug-2", "debug-3", "debug-4"), False, None),
    ]


def test_two_whole_jobs_are_two_calls() -> None:
    calls, _ = launch_groups(
        ask("debug-0 debug-1 debug-2 debug-3", (1, "debug-0 debug-1"), (2, "debug-2 debug-3")), DESIGN, "r"
    )
    assert [(c.job, c.all_or_nothing) for c in calls] == [(1, True), (2, True)]


def test_partitions_are_never_mixed() -> None:
    calls, _ = launch_groups(ask("debug-0 gpu-1", (1, "debug-0"), (2, "gpu-1")), DESIGN, "r")
    assert sorted((c.partition, c.nodes, c.job) for c in calls) == [
        ("debug", ("debug-0",), 1),
        ("gpu", ("gpu-1",), 2),
    ]


def test_a_jobs_nodes_that_are_up_already_are_not_launched_but_the_rest_is_still_whole() -> None:
    calls, _ = launch_groups(ask("debug-1", (5, "debug-0 debug-1")), DESIGN, "r")
    assert [(c.nodes, c.all_or_nothing) for c in calls] == [(("debug-1",), True)]


def test_unknown_nodes_are_named_and_not_launched() -> None:
    calls, strangers = launch_groups(ask("debug-0 debug-20 ghost-1"), DESIGN, "r")
    assert strangers == ["debug-20", "ghost-1"]
    assert [c.nodes for c in calls] == [("debug-0",)]


def test_tokens_repeat_for_the_same_request_and_differ_for_another() -> None:
    request = ask("debug-0 debug-1", (7, "debug-0 debug-1"))
    first, again, other = (launch_groups(request, DESIGN, name)[0][0].token for name in ("a", "a", "b"))
    assert first == again != other
    assert len(first) <= 64, "EC2 takes 64 characters"


def test_a_thousand_nodes_without_a_job_of_their_own_are_one_call() -> None:
    wide = dataclasses.replace(DESIGN, partitions=(Partition("wide", "local.small", 1, 500, 0, 1000),))
    nodes = tuple(f"wide-{i}" for i in range(1000))
    jobs = tuple(ResumeJob(i, (node,)) for i, node in enumerate(nodes))
    (call,), strangers = launch_groups(ResumeRequest(nodes, jobs), wide, "r")
    assert (call.nodes, call.all_or_nothing, strangers) == (nodes, False, [])
