"""docs/choosing.md: its tables have every shipped stack, the sums of its plan, and all options of `init`."""

from __future__ import annotations

import re

import typer

from cli.main import app
from infra.config import load_file
from infra.cost import cost
from infra.design import design
from infra.instance_types.catalog import tables
from tests.support import shipped
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| .* \| `(Pulumi\.\S+\.yaml)` \| ([\d.]+) / ([\d.]+) \| (nothing|\d+)", re.MULTILINE)


def test_the_table_says_what_each_stack_costs_and_needs() -> None:
    rows = {file: (idle, most, needed) for file, idle, most, needed in ROW.findall(PAGE)}
    expected = {}
    for path in shipped.files():
        config = load_file(path)
        price = cost(design(config, tables()), tables())
        assert price["unknown"] == []
        sums = (price["idle_usd_per_hour"], price["max_usd_per_hour"])
        needed = str(len(config.placeholders) or "nothing")
        expected[path.name] = (*(f"{one:.2f}" for one in sums), needed)
    assert rows == expected


def test_the_options_of_init_are_in_the_table() -> None:
    command = typer.main.get_command(app).commands["init"]  # type: ignore[attr-defined]
    options = {name for option in command.params for name in option.opts if name.startswith("--")}
    named = set(re.findall(r"--[a-z][a-z-]*", PAGE.partition("| option |")[2].partition("\n\n")[0]))
    assert named == options - {"--help"}
