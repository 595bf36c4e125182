"""Tests of the ports of a process cluster's nodes while partitions are added, grow and are removed."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from node.design.model import Partition
from node.slurm import port_blocks
from node.slurm.port_blocks import BLOCK, Blocks, lay_out_blocks

A = Partition("a", "m", 1, 1, 0, 3)
B, C = dataclasses.replace(A, name="b", max=70), dataclasses.replace(A, name="c")


def test_a_new_cluster_has_its_partitions_one_after_the_other() -> None:
    blocks = lay_out_blocks([A, B, C], {})
    assert blocks == {"a": ((0, BLOCK),), "b": ((BLOCK, 2 * BLOCK),), "c": ((3 * BLOCK, BLOCK),)}
    assert port_blocks.ports_of_blocks(blocks) == 4 * BLOCK
    assert list(port_blocks.block_numbers(B, blocks).items())[:2] == [("b-0", BLOCK), ("b-1", BLOCK + 1)]


def test_who_stays_keeps_its_ports_when_another_goes_and_a_new_one_takes_the_room() -> None:
    before = lay_out_blocks([A, B, C], {})
    after = lay_out_blocks([B, C], before)
    assert after == {name: before[name] for name in ("b", "c")}
    renamed = dataclasses.replace(A, name="new")
    assert lay_out_blocks([renamed, B, C], before)["new"] == before["a"]


def test_a_partition_that_outgrows_its_block_gets_another_one_behind() -> None:
    before = lay_out_blocks([A, C], {})
    more = dataclasses.replace(A, max=BLOCK + 2)
    after = lay_out_blocks([more, C], before)
    assert after == {"a": ((0, BLOCK), (2 * BLOCK, BLOCK)), "c": before["c"]}
    ports = port_blocks.block_numbers(more, after)
    assert [len(run) for run in port_blocks.block_runs(more.nodes(), ports)] == [BLOCK, 2]
    assert port_blocks.parse_blocks(json.loads(json.dumps(after))) == after


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 200)), max_size=6))
def test_no_node_ever_moves_and_no_two_meet(history: list[dict[str, int]]) -> None:
    now: Blocks = {}
    seen: dict[str, int] = {}
    for step in history:
        partitions = [dataclasses.replace(A, name=name, max=count) for name, count in step.items()]
        now = lay_out_blocks(partitions, now)
        ports = {node: n for p in partitions for node, n in port_blocks.block_numbers(p, now).items()}
        assert len(ports) == sum(step.values()) == len(set(ports.values()))
        stayed = {node: port for node, port in seen.items() if node in ports}
        assert {node: ports[node] for node in stayed} == stayed
        # A later partition with the name of a removed one is a different partition.
        seen = ports
