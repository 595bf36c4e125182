"""Names and ids of Compute Engine instances can be converted both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.names import Identity
from tests.support import texts

NAMES = texts.matching(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?")


@given(NAMES, NAMES, st.integers(0, 9999))
def test_a_nodes_instance_and_back(cluster: str, partition: str, number: int) -> None:
    node = f"{partition}-{number}"
    assert gce_names.node_of(cluster, gce_names.instance_of(cluster, node)) == node


@pytest.mark.parametrize("instance", ["other-compute-0", "t", "t-", "tt-compute-0", ""])
def test_strangers(instance: str) -> None:
    with pytest.raises(ValueError, match="does not belong to the cluster t"):
        gce_names.node_of("t", instance)


@given(NAMES, NAMES, st.integers(1, 2**63))
def test_ids(zone: str, name: str, number: int) -> None:
    identity = Identity(zone, name, number)
    assert Identity.parse(str(identity)) == identity


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c", "i-0123"])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        Identity.parse(text)


def test_links() -> None:
    link = "https://www.googleapis.com/compute/v1/projects/p/zones/europe-west4-a/instances/t-compute-0"
    assert gce_names.short(link) == "t-compute-0"
