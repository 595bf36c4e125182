"""The tables of `./cluster chaos show`."""

from __future__ import annotations

import time
from typing import Any

from cli.console.tables import cell, new_table, put


def show_chaos(found: dict[str, Any]) -> None:
    """Show the local cloud's settings, and the machines that have a fault."""
    keys = new_table("Settings", "key", "now", "stack file", "meaning")
    for row in found["keys"]:
        now, said = _value(row["value"]), _value(row["stack_file"])
        keys.add_row(cell(row["key"]), now, said if now != said else "the same", cell(row["meaning"]))
    put(keys)
    if not found["machines"]:
        put("\nNothing is wrong with any machine")
        return
    machines = new_table("\nMachines", "node", "state", "what is wrong")
    for machine in found["machines"]:
        machines.add_row(cell(machine["node"]), cell(machine["state"]), cell(_wrong(machine)))
    put(machines)


def _value(value: Any) -> str:
    return cell(f"{value:g}" if isinstance(value, float) else value)


def _wrong(machine: dict[str, Any]) -> str:
    said = []
    if machine["notice"] is not None:
        said.append(f"the cloud takes it in {max(0, round(machine['notice'] - time.time()))} s")
    said += [word for key, word in (("frozen", "frozen"), ("cut", "no network")) if machine[key]]
    if not machine["registers"]:
        said.append("never registers")
    return ", ".join(said)
