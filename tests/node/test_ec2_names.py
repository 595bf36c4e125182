"""A node's name from its launch's tags and its number in them, and the calls that a launch takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.elastic.drivers.ec2.names import NODES_TAGS, TAG_LENGTH, calls, node_of, nodes_in, tags_of
from node.slurm.hostlist import fold


@pytest.mark.parametrize(
    ("tag", "index", "node"),
    [
        ("compute-[0-3]", 2, "compute-2"),
        ("compute-7", 0, "compute-7"),
        ("compute-[0,5,9-11]", 3, "compute-10"),
        ("gpu-2-[8-10]", 2, "gpu-2-10"),
    ],
)
def test_a_node_is_the_lists_element(tag: str, index: int, node: str) -> None:
    assert node_of(tag, index) == node


@pytest.mark.parametrize(
    ("tag", "index"), [("compute-[0-3]", 4), ("compute-[0-3]", -1), ("", 0), ("a[", 0), ("a[0-9999]", 3)]
)
def test_a_tag_without_a_node_name_is_an_error(tag: str, index: int) -> None:
    with pytest.raises(ValueError, match=r"has no element|host list"):
        node_of(tag, index)


def test_a_thousand_nodes_in_a_row_are_two_calls() -> None:
    assert [len(call) for call in calls([f"c-{n}" for n in range(1000)], 500)] == [500, 500]


def test_nodes_with_gaps_between_them_are_no_more_calls_than_nodes_in_a_row() -> None:
    nodes = [f"compute-{n}" for n in range(3000, 5000, 2)]
    assert [len(call) for call in calls(nodes, 500)] == [500, 500]


def test_a_list_that_is_too_long_for_a_tag_goes_on_in_others() -> None:
    nodes = [f"compute-{n}" for n in range(0, 800, 2)]
    tags = tags_of(nodes)
    assert list(tags)[:3] == ["slurm-stacks:nodes", "slurm-stacks:nodes-2", "slurm-stacks:nodes-3"]
    assert all(1 <= len(value) <= TAG_LENGTH for value in tags.values())
    asked: list[str] = []

    def tag(key: str) -> str | None:
        asked.append(key)
        return tags.get(key)

    assert nodes_in(tag) == fold(nodes)
    assert asked == list(tags), "no tag is asked for that cannot be there"
    assert tags_of(["c-1"]) == {"slurm-stacks:nodes": "c-1"}
    assert nodes_in(dict[str, str]().get) is None


def test_a_list_that_fills_its_last_tag_ends_there() -> None:
    exact = {"slurm-stacks:nodes": "c" * TAG_LENGTH}
    assert nodes_in(exact.get) == "c" * TAG_LENGTH
    full = dict.fromkeys(tags_of([f"c{n}-{'x' * 250}" for n in range(NODES_TAGS * 2)]), "c" * TAG_LENGTH)
    assert len(nodes_in(full.get) or "") == TAG_LENGTH * NODES_TAGS


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 3000), min_size=1, max_size=300), st.integers(1, 500))
def test_every_machine_finds_the_node_that_the_driver_means(numbers: set[int], most: int) -> None:
    """Each node is in exactly one call, at its own number, and there are no more calls than needed."""
    nodes = [f"p-{n}" for n in numbers]
    found = calls(nodes, most)
    lists = [(nodes_in(tags_of(call).get) or "", call) for call in found]
    told = [node_of(text, index) for text, call in lists for index in range(len(call))]
    assert told == [node for call in found for node in call]
    assert sorted(told) == sorted(nodes)
    assert all(len(call) <= most and len(tags_of(call)) <= NODES_TAGS for call in found)
    assert len(found) == -(-len(nodes) // most)
