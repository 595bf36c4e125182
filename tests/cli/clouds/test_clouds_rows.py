"""The rows of the change tables that every cloud shares."""

from __future__ import annotations

import pytest

from cli.changes.table import SHARED, Kind, Row, whole_table
from cli.providers.aws import changes as aws
from cli.providers.gcp import changes as gcp


@pytest.mark.parametrize("table", [aws.TABLE, gcp.TABLE], ids=["aws", "gcp"])
def test_each_cloud_has_the_shared_rows(table: dict[str, Row]) -> None:
    assert {key: table[key] for key in SHARED} == SHARED


def test_a_row_cannot_be_there_twice() -> None:
    with pytest.raises(ValueError, match="hooks"):
        whole_table({"hooks": Row(Kind.NODES)})


def test_a_table_says_where_first_and_keeps_a_section_together() -> None:
    own = ("batch", "partitions.zones", "gcp:region", "network.zones")
    keys = list(whole_table({key: Row(Kind.NODES) for key in own}))
    assert keys[0] == "gcp:region"
    assert keys[-1] == "batch"
    sections = [key.partition(".")[0] for key in keys]
    assert [s for n, s in enumerate(sections) if s not in sections[:n]] == [
        s for n, s in enumerate(sections) if n == 0 or sections[n - 1] != s
    ]
