"""The ledger: how long machines ran and what they cost, over restarts, changed designs and damaged files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from node.design.model import Partition
from node.elastic.driver import Machine, MachineState
from node.elastic.ledger import Ledger
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
    assert ledger.cost(0.0) == {
        "node_hours": 0, "usd": 0, "at_least_usd": 0, "unknown": [], "by_partition": {}, "by_pool": {},
    }  # fmt: skip
    one, two = machine("cheap-0", 0.0), machine("dear-1", HOUR, MachineState.PENDING)
    ledger.see([one], 10.0)
    assert ledger.cost(HOUR)["node_hours"] == 1.0
    ledger.see([one, two], 2 * HOUR)
    assert ledger.cost(2 * HOUR) == {
        "node_hours": 3.0,
        "usd": 12.0,
        "at_least_usd": 12.0,
        "unknown": [],
        "by_partition": {"cheap": 2.0, "dear": 1.0},
        "by_pool": {},
    }
    ledger.see([two], 3 * HOUR)
    assert ledger.cost(5 * HOUR)["by_partition"] == {"cheap": 3.0, "dear": 4.0}
    ledger.see([machine("dear-1", HOUR, MachineState.TERMINATED)], 5 * HOUR)
    assert ledger.cost(100 * HOUR)["by_partition"] == {"cheap": 3.0, "dear": 4.0}


def test_a_machine_that_one_listing_left_out_is_counted_once(tmp_path: Path) -> None:
    """A cloud's lists lag, and a slow listing may have begun before the launch that it does not show."""
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    running = machine("cheap-0", 1000.0)
    ledger.see([running], 2000.0)
    ledger.see([], 2010.0)
    assert ledger.account(2010.0).node_hours == pytest.approx(1010 / 3600)
    ledger.see([running], 2020.0)
    assert ledger.account(2020.0).node_hours == pytest.approx(1020 / 3600)
    ledger.see([], 4600.0)
    assert ledger.account(5000.0).node_hours == pytest.approx(1.0)
    assert ledger.account(5000.0).usd == pytest.approx(1.0)
    again = Ledger(tmp_path / "ledger.json", DESIGN)
    assert again.account(5000.0).node_hours == pytest.approx(1.0)


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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.json", "machines"]


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
    assert (cost["at_least_usd"], cost["unknown"]) == (pytest.approx(2.0), ["free"])


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


def test_a_clock_that_is_set_while_a_listing_leaves_a_machine_out_costs_nothing(tmp_path: Path) -> None:
    """The machine is listed again after the clock jumped: it has run as long as before, and no longer."""
    steady = 0.0
    ledger = Ledger(tmp_path / "ledger.json", DESIGN, lambda: steady)
    running = machine("cheap-0", 1000.0)
    ledger.see([running], 1000.0)
    steady = 100.0
    ledger.see([], 1100.0)
    steady = 110.0
    ledger.see([running], 1110.0 + 5 * HOUR)
    steady = 120.0
    assert ledger.account(1120.0 + 5 * HOUR).node_hours == pytest.approx(120 / 3600)
    ((partition, seconds),) = ledger.account(1120.0 + 5 * HOUR).running
    assert partition == "cheap"
    assert seconds == pytest.approx(120.0)


# --- launches that no listing has shown yet --------------------------------------------------------------


def test_a_launch_counts_before_a_listing_shows_it_and_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.launched({"cheap-0": "m-cheap-0-0.0", "other-0": "m"}, 0.0)
    ledger.see([], 30.0)
    assert ledger.account(36.0).running == (("cheap", 36.0),)
    ledger.see([machine("cheap-0", 0.0)], 40.0)
    assert ledger.cost(HOUR)["node_hours"] == 1.0
    ledger.see([], HOUR)
    assert ledger.cost(9 * HOUR)["node_hours"] == 1.0


def test_a_launch_that_never_shows_up_ends_in_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.launched({"cheap-0": "m", "cheap-1": "n"}, 0.0)
    gone = Machine("n", "cheap-1", MachineState.TERMINATED, 0.0)
    ledger.see([gone], 36.0)
    assert ledger.account(36.0).running == (("cheap", 36.0),), "n was shown: it is over"
    ledger.see([], 72.0)
    assert ledger.account(HOUR).running == ()
    assert ledger.account(HOUR).node_hours == pytest.approx(108 / 3600)


# --- prices ----------------------------------------------------------------------------------------------


def test_what_was_spent_stays_spent_whatever_up_changes(tmp_path: Path) -> None:
    """Another price, or a partition that is gone, does not change past costs."""
    file = tmp_path / "ledger.json"
    first = Ledger(file, DESIGN)
    first.see([machine("cheap-0", 0.0), machine("dear-0", 0.0)], 0.0)
    first.see([machine("cheap-0", 0.0)], HOUR)
    again = Ledger(file, design(dataclasses.replace(CHEAP, price_hour=100.0)))
    assert again.cost(HOUR) == {
        "node_hours": 2.0, "usd": 11.0, "at_least_usd": 11.0, "unknown": [],
        "by_partition": {"cheap": 1.0, "dear": 1.0}, "by_pool": {},
    }  # fmt: skip
    again.see([machine("cheap-0", 0.0), machine("cheap-1", HOUR)], HOUR)
    assert again.account(2 * HOUR).usd == pytest.approx(10 + 2 + 100)


def test_usd_that_are_known_are_told_apart_from_those_that_are_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    ledger.see([machine("cheap-0", 0.0), machine("free-0", 0.0)], 0.0)
    account = ledger.account(HOUR)
    assert (account.usd, account.unpriced, account.node_hours) == (1.0, ("free",), 2.0)
    assert ledger.cost(HOUR)["usd"] is None


def test_a_cloud_bills_the_first_minute(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", dataclasses.replace(DESIGN, provider="aws"))
    ledger.see([machine("cheap-0", 0.0)], 1.0)
    assert ledger.account(2.0).node_hours == pytest.approx(60 / 3600)
    ledger.see([], 10.0)
    assert ledger.account(9 * HOUR).node_hours == pytest.approx(60 / 3600)


def test_the_newest_machine_of_a_node_is_known_until_it_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    first = Ledger(file, DESIGN)
    first.launched({"cheap-0": "m-1", "cheap-1": "m-2", "dear-0": "m-3"}, 0.0)
    first.launched({"cheap-0": "m-4"}, 1.0)
    first.see([], 900.0)
    again = Ledger(file, DESIGN)
    assert again.newest() == {"cheap-0": "m-4", "cheap-1": "m-2", "dear-0": "m-3"}
    again.forget(["cheap-0", "cheap-9"])
    assert Ledger(file, DESIGN).newest() == {"cheap-1": "m-2", "dear-0": "m-3"}
    assert Ledger(file, design(CHEAP)).newest() == {"cheap-1": "m-2"}, "a node that the design has no more"


# --- files that cannot be read or written ----------------------------------------------------------------

GOOD = {"closed": {"cheap": {"seconds": HOUR, "usd": 1.0, "unpriced": 0.0}}, "open": {}, "newest": {}}
DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_text(""),
    "half": lambda file: file.write_text(json.dumps(GOOD)[:30]),
    "binary": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda file: file.write_text("[]"),
    "a part is missing": lambda file: file.write_text('{"closed": {}}'),
    "a part is another": lambda file: file.write_text('{"closed": [], "open": {}, "newest": {}}'),
    "no machines": lambda file: file.write_text(json.dumps({**GOOD, "newest": ["m-1"]})),
    "another version": lambda file: file.write_text(json.dumps({**GOOD, "closed": {"cheap": 3600.0}})),
    "no number": lambda file: file.write_text(json.dumps(GOOD).replace("3600.0", "NaN")),
    "less than nothing": lambda file: file.write_text(json.dumps(GOOD).replace("3600.0", "-3600.0")),
    "a folder": lambda file: file.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_file_is_set_aside_and_the_figures_say_so(
    tmp_path: Path, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ledger.json"
    damage(file)
    ledger = Ledger(file, DESIGN)
    (aside,) = ledger.account(0.0).damaged
    assert aside.startswith("ledger.json.damaged-")
    assert (tmp_path / aside).exists()
    (line,) = capsys.readouterr().out.splitlines()
    assert "cannot be read" in line
    assert aside in line
    ledger.see([machine("cheap-0", 0.0)], HOUR)
    again = Ledger(file, DESIGN)
    assert again.cost(HOUR)["node_hours"] == 1.0
    assert again.account(HOUR).damaged == (aside,), "until somebody has looked at it and takes it away"


def test_the_test_of_damage_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(GOOD))
    ledger = Ledger(file, DESIGN)
    assert (ledger.cost(0.0)["usd"], ledger.account(0.0).damaged) == (1.0, ())


def test_a_half_written_draft_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(GOOD))
    (tmp_path / ".ledger.json.0123").write_text('{"closed"')
    ledger = Ledger(file, DESIGN)
    assert ledger.cost(0.0)["usd"] == 1.0
    ledger.see([machine("cheap-0", 0.0)], HOUR)
    assert Ledger(file, DESIGN).cost(HOUR)["usd"] == 2.0


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path / "ledger.json", DESIGN)
    (tmp_path / "ledger.json").mkdir()
    ledger.see([machine("cheap-0", 0.0)], 0.0)
    assert "cannot be written" in capsys.readouterr().out
    (tmp_path / "ledger.json").rmdir()
    ledger.see([machine("cheap-0", 0.0)], 1.0)
    assert Ledger(tmp_path / "ledger.json", DESIGN).cost(HOUR)["node_hours"] == 1.0
