"""How long machines ran and what it cost: over passes, restarts and partitions without a price."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.ledger import Ledger
from infra.node.model import Partition
from tests.support.doubles import design

CHEAP = Partition("cheap", "small", 1, 100, 0, 4, price_hour=1.0)
DEAR = Partition("dear", "large", 1, 100, 0, 4, price_hour=10.0)
FREE = Partition("free", "local", 1, 100, 0, 4)
DESIGN = design(CHEAP, DEAR, FREE)
HOUR = 3600.0


def machine(node: str | None, launched: float, state: MachineState = MachineState.RUNNING) -> Machine:
    return Machine(f"m-{node}-{launched}", node, state, launched)


def test_a_machine_counts_from_its_launch_to_the_pass_that_misses_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    assert ledger.cost(0.0) == {"node_hours": 0, "usd": 0, "by_partition": {}}
    one, two = machine("cheap-0", 0.0), machine("dear-1", HOUR, MachineState.PENDING)
    ledger.see([one], 10.0)
    assert ledger.cost(HOUR)["node_hours"] == 1.0
    ledger.see([one, two], 2 * HOUR)
    assert ledger.cost(2 * HOUR) == {
        "node_hours": 3.0,
        "usd": 12.0,
        "by_partition": {"cheap": 2.0, "dear": 1.0},
    }
    ledger.see([two], 3 * HOUR)
    assert ledger.cost(5 * HOUR)["by_partition"] == {"cheap": 3.0, "dear": 4.0}
    ledger.see([machine("dear-1", HOUR, MachineState.TERMINATED)], 5 * HOUR)
    assert ledger.cost(100 * HOUR)["by_partition"] == {"cheap": 3.0, "dear": 4.0}


def test_a_nodes_second_machine_is_another_machine(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.see([machine("cheap-0", 0.0)], 0.0)
    ledger.see([machine("cheap-0", HOUR)], HOUR)
    ledger.see([], 2 * HOUR)
    assert ledger.cost(9 * HOUR)["node_hours"] == 2.0


def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    first = Ledger(file, DESIGN)
    first.see([machine("cheap-0", 0.0), machine("dear-0", 0.0)], 0.0)
    first.see([machine("dear-0", 0.0)], HOUR)
    again = Ledger(file, DESIGN)
    assert again.cost(2 * HOUR) == first.cost(2 * HOUR)
    again.see([], 2 * HOUR)
    assert Ledger(file, DESIGN).cost(9 * HOUR)["by_partition"] == {"cheap": 1.0, "dear": 2.0}
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.json"]


def test_a_pass_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.see([machine("cheap-0", 0.0)], 0.0)
    (tmp_path / "ledger.json").unlink()
    ledger.see([machine("cheap-0", 0.0)], 10.0)
    assert not (tmp_path / "ledger.json").exists()


def test_usd_are_unknown_where_a_price_is_and_only_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.see([machine("cheap-0", 0.0)], 0.0)
    assert ledger.cost(HOUR)["usd"] == pytest.approx(1.0)
    ledger.see([machine("cheap-0", 0.0), machine("free-0", HOUR)], HOUR)
    cost = ledger.cost(2 * HOUR)
    assert (cost["usd"], cost["node_hours"]) == (None, 3.0)


def test_machines_that_are_no_nodes_are_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.see([machine(None, 0.0), machine("other-0", 0.0), machine("cheap-9", 0.0)], 0.0)
    assert ledger.cost(HOUR)["node_hours"] == 0


def test_a_clock_that_was_set_back_costs_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.see([machine("cheap-0", 10 * HOUR)], 0.0)
    assert ledger.cost(9 * HOUR)["node_hours"] == 0
    ledger.see([], 9 * HOUR)
    assert ledger.cost(20 * HOUR)["node_hours"] == 0
