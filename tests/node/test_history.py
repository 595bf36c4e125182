"""The history of nodes: what is a change, how many are kept, and that a damaged record stops nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.elastic import history
from node.elastic.failures import ErrorClass, Failure
from node.elastic.history import FILE, MOST_CHANGES, NodeHistory
from node.elastic.rules import MachinePhase
from node.slurm.states import NodeState

NAME = "debug-0"
TAKEN = "slurm-stacks preempted: the cloud takes this machine at 12:00:00 UTC"
M = MachinePhase


class Life:
    """A node's life as the reconciler sees it, a pass each second."""

    def __init__(self, lib: Path) -> None:
        self.file = lib / FILE
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        """Begin with a new daemon."""
        self.history = NodeHistory(self.file, [NAME])

    def see(
        self, state: str, machine: MachinePhase = M.NONE, reason: str | None = None, given: float = 0.0
    ) -> None:
        """Look at the node. Its reason was given at `given`, or just now."""
        self.now += 1
        seen = dataclasses.replace(NodeState.parse(NAME, state, reason), reason_time=given or self.now)
        self.history.see({NAME: seen}, {NAME: machine}, self.now)

    def told(self) -> list[tuple[str, str, str | None]]:
        return [(c.state, c.machine, c.reason) for c in self.history.of(NAME)]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_a_node_that_was_never_used_has_no_history(life: Life) -> None:
    life.see("IDLE+CLOUD+POWERED_DOWN")
    assert life.told() == []
    assert not life.file.exists()


def test_why_a_node_went(life: Life) -> None:
    life.see("ALLOCATED+CLOUD+POWERING_UP")
    life.see("MIXED+CLOUD+POWERING_UP", M.PENDING)
    life.see("MIXED+CLOUD", M.RUNNING)
    life.see("IDLE+CLOUD", M.RUNNING)
    life.see("ALLOCATED+CLOUD+COMPLETING", M.RUNNING)
    life.see("MIXED+CLOUD+DRAIN", M.NOTICED, TAKEN)
    life.see("IDLE+CLOUD+POWERING_DOWN", M.GONE, TAKEN)
    life.see("IDLE+CLOUD+POWERING_DOWN", M.NONE, TAKEN)
    life.see("IDLE+CLOUD+POWERED_DOWN", M.NONE, TAKEN)
    assert life.told() == [
        ("ALLOCATED+CLOUD+POWERING_UP", "none", None),
        ("MIXED+CLOUD+POWERING_UP", "pending", None),
        ("MIXED+CLOUD", "running", None),
        ("MIXED+CLOUD+DRAIN", "noticed", TAKEN),
        ("IDLE+CLOUD+POWERING_DOWN", "gone", TAKEN),
        ("IDLE+CLOUD+POWERED_DOWN", "none", TAKEN),
    ]
    assert [c.at for c in life.history.of(NAME)] == [1001, 1002, 1003, 1006, 1007, 1009]


def test_a_reason_of_an_earlier_time_is_not_why_the_node_went_now(life: Life) -> None:
    """Slurm keeps the reason of a node that is in service again, and shows it when that node goes idle."""
    life.see("IDLE+CLOUD+DRAIN", M.RUNNING, "bad fan", given=1001)
    life.see("IDLE+CLOUD", M.RUNNING, "bad fan", given=1001)
    life.see("IDLE+CLOUD+POWERING_DOWN", M.RUNNING, "bad fan", given=1001)
    life.see("IDLE+CLOUD+POWERED_DOWN", M.NONE, "bad fan", given=1001)
    assert [reason for *_, reason in life.told()] == ["bad fan", None, None, None]
    life.see("IDLE+CLOUD+DRAIN+POWERED_DOWN", M.NONE, "bad fan", given=life.now)
    assert [reason for *_, reason in life.told()][-1] == "bad fan", "somebody has said so once more"


def test_other_numbers_in_a_capacity_drains_reason_are_no_change(life: Life) -> None:
    for used in (4, 5):
        for kind in (ErrorClass.QUOTA, ErrorClass.CAPACITY):
            failure = Failure((), kind, "Full", f"{used} of 8 are in use")
            reason = f"slurm-stacks {failure.sentence()}"
            life.see("IDLE+CLOUD+DRAIN+POWERED_DOWN", M.NONE, reason)
            life.see("IDLE+CLOUD+DRAIN+POWERED_DOWN", M.NONE, reason.replace(f"{used} of", "6 of"))
    assert len(life.told()) == 4, "one for each cause"


def test_the_last_ten_are_kept_also_by_the_next_daemon(life: Life, tmp_path: Path) -> None:
    for number in range(3 * MOST_CHANGES):
        life.see("IDLE+CLOUD+DRAIN" if number % 2 else "IDLE+CLOUD", M.RUNNING, f"cause {number}")
    before = life.history.of(NAME)
    assert [c.at for c in before] == list(range(1021, 1031))
    life.begin()
    assert life.history.of(NAME) == before == tuple(history.read(life.file, NAME))
    life.see("IDLE+CLOUD+DRAIN", M.RUNNING, "cause 29", given=1030)
    assert life.history.of(NAME) == before, "it is as it was"
    assert history.read(life.file, "debug-1") == []
    assert NodeHistory(life.file, ["debug-1"]).of(NAME) == (), "the design has this node no longer"


LINES = b'{"node": "debug-0", "at": 1001, "state": "IDLE+CLOUD", "machine": "running", "reason": null}\n'


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (b"", 0),
        (LINES + LINES[:40], 1),
        (b"\xff\xfe\n" + LINES, 1),
        (b"[]\n7\nnull\n" + LINES + LINES.replace(b"running", b"flying"), 1),
        (LINES.replace(b"1001", b"1e999") + LINES.replace(b"1001", b'"1001"'), 0),
        (LINES.replace(b"null", b"[]") + LINES.replace(b'"node": "debug-0", ', b""), 0),
    ],
)
def test_a_damaged_record_loses_its_damaged_lines_and_stops_nothing(
    life: Life, record: bytes, kept: int
) -> None:
    life.file.write_bytes(record)
    life.begin()
    assert len(life.history.of(NAME)) == kept
    life.see("DOWN+CLOUD", M.RUNNING, "Not responding")
    again = history.read(life.file, NAME)
    assert (len(again), again[-1].reason) == (kept + 1, "Not responding")
    assert [json.loads(line)["node"] for line in life.file.read_text().splitlines()] == [NAME] * (kept + 1)


def test_something_else_in_the_records_place_stops_nothing(life: Life) -> None:
    life.file.mkdir()
    life.begin()
    for _ in range(2):
        with pytest.raises(OSError, match=FILE):
            life.see("IDLE+CLOUD", M.RUNNING)
    assert len(life.told()) == 1, "it is known, and not told twice"
    life.file.rmdir()
    life.see("MIXED+CLOUD", M.RUNNING)
    assert [c.at for c in history.read(life.file, NAME)] == [1001], "written late"


def test_record_and_memory_grow_with_the_nodes_and_not_with_their_changes(tmp_path: Path) -> None:
    """Of 5,000 nodes this is 15 MB of memory at most."""
    names = [f"debug-{n}" for n in range(200)]
    tracemalloc.start()
    kept = NodeHistory(tmp_path / FILE, names)
    for number in range(6 * MOST_CHANGES):
        state = "IDLE+CLOUD+POWERED_DOWN" if number % 2 else "IDLE+CLOUD+POWERING_UP"
        nodes = {name: NodeState.parse(name, state) for name in names}
        kept.see(nodes, dict.fromkeys(names, M.NONE), 1000.0 + number)
        if number:
            assert (tmp_path / FILE).read_bytes().count(b"\n") <= 1.6 * len(names) * MOST_CHANGES
    del nodes
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {len(kept.of(name)) for name in names} == {MOST_CHANGES}
    assert memory / len(names) < 3000, "bytes of a node"


STATES = st.sampled_from(
    ["IDLE+CLOUD", "MIXED+CLOUD+DRAIN", "IDLE+CLOUD+POWERED_DOWN", "DOWN+CLOUD", "IDLE+CLOUD+POWERING_DOWN"]
)


REASONS = st.sampled_from([None, "bad fan", TAKEN])


@given(st.lists(st.tuples(STATES, st.sampled_from(MachinePhase), REASONS, st.booleans()), max_size=40))
def test_neighbours_differ_and_a_restart_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, seen: list[tuple[str, MachinePhase, str | None, bool]]
) -> None:
    life = Life(tmp_path_factory.mktemp("lib"))
    for state, machine, reason, restart in seen:
        life.see(state, machine, reason)
        if restart:
            before = life.history.of(NAME)
            life.begin()
            assert life.history.of(NAME) == before
        told = life.told()
        assert len(told) <= MOST_CHANGES
        assert all(one != other for one, other in itertools.pairwise(told))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([M.NONE, M.RUNNING]))))
def test_of_a_node_that_has_not_changed_is_known_what_a_new_comparison_would_find(
    tmp_path_factory: pytest.TempPathFactory, seen: list[tuple[int, int, MachinePhase]]
) -> None:
    """Slurm's nodes are the same objects as before if they have not changed. One is lost now and then."""
    texts = ("IDLE+CLOUD+POWERED_DOWN", "ALLOCATED+CLOUD+POWERING_UP", "IDLE+CLOUD+DRAIN")
    same = [
        dataclasses.replace(NodeState.parse(NAME, text, reason), reason_time=1003.0)
        for text, reason in zip(texts, (None, None, "bad fan"), strict=True)
    ]
    folder = tmp_path_factory.mktemp("lib")
    kept, compared = NodeHistory(folder / "kept", [NAME]), NodeHistory(folder / "compared", [NAME])
    shown: dict[str, NodeState] = {}
    for now, (state, known, machine) in enumerate(seen, 1000):
        machines = {NAME: machine} if known else {}
        shown[NAME] = same[state]
        kept.see(shown, machines, now)
        compared.see({NAME: dataclasses.replace(same[state])}, machines, now)
        assert kept.of(NAME) == compared.of(NAME)
