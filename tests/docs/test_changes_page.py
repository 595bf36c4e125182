"""The pages of changes: the programs' tables of what a change does, and the lines that `up` prints."""

from __future__ import annotations

import dataclasses
import re

import pytest

from cli.changes.table import compare
from cli.providers.aws.changes import RULES
from infra.config import changes
from infra.effects import Kind
from node.design.model import ClusterDesign, Partition
from tests.support.checkout import ROOT
from tools.changes_page import PROVIDERS, SHORT, TABLE, table

TEXT = (ROOT / "docs" / "reference" / "changes.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "changes.md").read_text(encoding="utf-8")
WORDS = dict(re.findall(r"^\| (\S[^|]*) \| ([^|]+) \|$", TEXT, re.MULTILINE))
"""The page's word for each kind -> what it means."""


def test_the_table_has_keys_of_each_kind() -> None:
    (found,) = TABLE.finditer(TEXT)
    for key in ("`partitions.nodes.max`", "`storage.*.size_gib`", "`local.isolation`"):
        assert key in found[0]


@pytest.mark.parametrize("kind", SHORT)
def test_every_kind_is_explained(kind: Kind) -> None:
    assert kind.value in WORDS[SHORT[kind]]


def test_no_key_loses_the_queue_where_slurms_state_has_a_disk() -> None:
    """`compare` makes it this kind where there is none, and the page says so below the words."""
    assert set(Kind) - set(SHORT) == {Kind.HEAD}
    assert all(
        Kind.HEAD not in (row.kind, row.less)
        for provider in PROVIDERS.values()
        for row in changes.table(provider).values()
    )
    assert "Without it the queue and running jobs end with the head" in TEXT


def test_every_key_is_in_one_line_or_changes_nothing() -> None:
    for provider in PROVIDERS.values():
        for key, row in changes.table(provider).items():
            lines = [line for line in table().splitlines() if f"`{key}`" in line]
            assert len(lines) == 1 or (not lines and row.kind is Kind.NOTHING), key


def test_the_lines_of_changes_are_as_they_are_printed() -> None:
    cpu = Partition("cpu", "c4.2xlarge", 8, 14000, 0, 10)
    old = ClusterDesign("c", "c", "aws", "vm", (), (cpu,), ())
    for change in ({"max": 20}, {"instance_type": "c5.2xlarge"}):
        new = dataclasses.replace(old, partitions=(dataclasses.replace(cpu, **change),))
        (found,) = compare(old, new, RULES)
        assert f"{found.line()}\n" in GUIDE
