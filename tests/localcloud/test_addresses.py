"""Blocks of loopback addresses: each cluster on this host has its own, also clusters of different users."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from localcloud import addresses
from operations.local.run_directory import FIRST_PORT, LAST_PORT


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made(tmp_path / "mine" / "one")


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_block_is_chosen_once_and_leads_to_this_host(run: Path) -> None:
    first = addresses.ensure_block(run)
    assert addresses.saved_block(run) == first == addresses.ensure_block(run) == addresses.planned_block(run)
    assert first.startswith("127.")
    assert not first.startswith("127.0."), "localhost, this host's name and the resolver have that"
    assert addresses.usable(first)
    with socket.create_server((addresses.head_address(first, 0), 0)) as server:
        socket.create_connection(server.getsockname(), 5).close()


def test_a_preview_writes_nothing(run: Path) -> None:
    assert addresses.planned_block(run) == addresses.planned_block(run)
    assert list(run.iterdir()) == []


def test_blocks_have_room_for_all_nodes_that_have_ports_and_stay_apart() -> None:
    blocks = sorted(addresses.number(first) for first in addresses._blocks(7))
    assert addresses.BLOCK - addresses.NODES >= LAST_PORT - FIRST_PORT
    assert all(b - a >= addresses.BLOCK for a, b in itertools.pairwise(blocks))
    assert addresses.text(blocks[0]) == "127.1.0.0"
    assert addresses.text(blocks[-1] + addresses.BLOCK - 1) == "127.255.191.255", "not the broadcast address"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"first": "10.0.0.0"}', '{"first": "127.0.0.0"}'])
def test_a_damaged_note_is_none(run: Path, content: str) -> None:
    (run / "addresses.json").write_text(content)
    assert addresses.saved_block(run) is None
    assert addresses.saved_block(run) != addresses.ensure_block(run)


def test_clusters_of_one_user_have_blocks_of_their_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clusters begin their search at the same block, and no agent runs."""
    monkeypatch.setattr(addresses, "_seed", lambda _run: 7)
    assert addresses.ensure_block(run) != addresses.ensure_block(made(run.with_name("two")))


def test_clusters_of_two_users_have_blocks_of_their_own(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see only each other's claims."""
    monkeypatch.setattr(addresses, "_seed", lambda _run: 7)
    held = addresses.claim(run, movable=True)
    assert held is not None
    with held:
        first = addresses.saved_block(run)
        assert first in addresses.claimed_blocks()
        other = made(tmp_path / "another user's" / "one")
        assert addresses.ensure_block(other) != first
        # Both chose at the same moment. The later claim moves to another block, unless its machines know it.
        (other / "addresses.json").write_text((run / "addresses.json").read_text())
        assert addresses.claim(other, movable=False) is None
        assert addresses.saved_block(other) == first
        moved = addresses.claim(other, movable=True)
        assert moved is not None
        with moved:
            assert addresses.saved_block(other) != first
            assert {first, addresses.saved_block(other)} <= addresses.claimed_blocks()
    assert first not in addresses.claimed_blocks(), "it ends with its holder"


def test_where_something_listens_no_cluster_goes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_seed", lambda _run: 7)
    free = addresses.planned_block(run)
    with socket.create_server((addresses.head_address(free, 3), 0)):
        assert addresses.planned_block(run) != free


def test_a_sandbox_whose_loopback_has_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "head_address", lambda _first, _index: "192.0.2.1")  # nobody's address
    assert not addresses.usable("127.1.0.0")
