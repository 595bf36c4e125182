"""Tests of the ports of a process cluster's nodes while partitions are added, grow and are removed."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from node.model import Partition
from node.slurm import blocks
from node.slurm.blocks import BLOCK, Blocks, lay_out

A = Partition("a", "m", 1, 1, 0, 3)
B, C = dataclasses.replace(A, name="b", max=70), dataclasses.replace(A, name="c")


def test_a_new_cluster_has_its_partitions_one_after_the_other() -> None:
    made = lay_out([A, B, C], {})
    assert made == {"a": ((0, BLOCK),), "b": ((BLOCK, 2 * BLOCK),), "c": ((3 * BLOCK, BLOCK),)}
    assert blocks.needed(made) == 4 * BLOCK
    assert list(blocks.numbers(B, made).items())[:2] == [("b-0", BLOCK), ("b-1", BLOCK + 1)]


def test_who_stays_keeps_its_ports_when_another_goes_and_a_new_one_takes_the_room() -> None:
    before = lay_out([A, B, C], {})
    after = lay_out([B, C], before)
    assert after == {name: before[name] for name in ("b", "c")}
    renamed = dataclasses.replace(A, name="new")
    assert lay_out([renamed, B, C], before)["new"] == before["a"]


def test_a_partition_that_outgrows_its_block_gets_another_one_behind() -> None:
    before = lay_out([A, C], {})
    more = dataclasses.replace(A, max=BLOCK + 2)
    after = lay_out([more, C], before)
    assert after == {"a": ((0, BLOCK), (2 * BLOCK, BLOCK)), "c": before["c"]}
    ports = blocks.numbers(more, after)
    assert [len(run) for run in blocks.runs(more.nodes(), ports)] == [BLOCK, 2]
    assert blocks.parse(json.loads(json.dumps(after))) == after


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 200)), max_size=6))
def test_no_node_ever_moves_and_no_two_meet(history: list[dict[str, int]]) -> None:
    now: Blocks = {}
    seen: dict[str, int] = {}
    for step in history:
        partitions = [dataclasses.replace(A, name=name, max=count) for name, count in step.items()]
        now = lay_out(partitions, now)
        ports = {node: n for p in partitions for node, n in blocks.numbers(p, now).items()}
        assert len(ports) == sum(step.values()) == len(set(ports.values()))
        stayed = {node: port for node, port in seen.items() if node in ports}
        assert {node: ports[node] for node in stayed} == stayed
        # A later partition with the name of a removed one is a different partition.
        seen = ports
