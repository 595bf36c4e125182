"""`./cluster chaos`: causes faults on the local cloud, to show what happens to jobs."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from cli.options import UNNAMED, Json, StackOption, load
from infra.program.stack import Stack

app = typer.Typer(
    help="Make machines die and the cloud refuse, to test your jobs (local stacks).",
    short_help="Cause faults of the local cloud, to test your jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Node = Annotated[str, typer.Argument(help="A node's name, as `./cluster status` shows it.")]
NOTICE_SECONDS = 30.0
LONGEST_NOTICE = 86400.0


@app.command()
def show(stack: StackOption = UNNAMED, json_output: Json = False) -> None:
    """Show the settings that hold now, and the machines with a fault."""
    from cli.providers.local import chaos

    shown = chaos.show(stack, load(stack))
    if json_output:
        print(json.dumps(shown, indent=1))
        return
    _show(shown)


@app.command("set", no_args_is_help=True)
def set_keys(
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="`show` lists the keys.", show_default=False)
    ],
    stack: StackOption = UNNAMED,
) -> None:
    """Set keys: quota_nodes=2 api_error=throttled

    KEY= without a value, or KEY=null, removes a limit or a fault. All of the changes are made, or none.
    """
    from cli.providers.local import chaos

    print(chaos.change(stack, load(stack), changes))


@app.command()
def clear(stack: StackOption = UNNAMED) -> None:
    """Restore the stack file's settings; thaw machines and reconnect networks."""
    from cli.providers.local import chaos

    print(chaos.clear(stack, load(stack)))


@app.command()
def kill(node: Node, stack: StackOption = UNNAMED) -> None:
    """Cut a machine's power."""
    _act("kill", node, stack)


@app.command()
def freeze(node: Node, stack: StackOption = UNNAMED) -> None:
    """Freeze a machine until `thaw`."""
    _act("freeze", node, stack)


@app.command()
def thaw(node: Node, stack: StackOption = UNNAMED) -> None:
    """Let a frozen machine run again."""
    _act("thaw", node, stack)


@app.command()
def cut(node: Node, stack: StackOption = UNNAMED) -> None:
    """Cut a machine's network until `join`."""
    _act("cut", node, stack)


@app.command()
def join(node: Node, stack: StackOption = UNNAMED) -> None:
    """Reconnect a machine's network."""
    _act("join", node, stack)


@app.command()
def preempt(
    node: Node,
    stack: StackOption = UNNAMED,
    notice: Annotated[
        float, typer.Option("--notice", help="Seconds from the notice to the end.", min=0, max=LONGEST_NOTICE)
    ] = NOTICE_SECONDS,
) -> None:
    """Let the cloud take a machine back, after a notice."""
    _act("preempt", node, stack, notice)


def _act(action: str, node: str, stack: Stack, notice: float | None = None) -> None:
    from cli.providers.local import chaos

    print(chaos.act(stack, load(stack), action, node, notice))


def _show(found: dict[str, Any]) -> None:
    """Show the local cloud's settings, and the machines that have a fault."""
    from cli.console.tables import cell, new_table, put

    keys = new_table("Settings", "key", "now", "stack file", "meaning")
    for row in found["keys"]:
        now, file = cell(_value(row["value"])), cell(_value(row["stack_file"]))
        keys.add_row(cell(row["key"]), now, file if now != file else "the same", cell(row["meaning"]))
    put(keys)
    if not found["machines"]:
        put("\nNothing is wrong with any machine")
        return
    machines = new_table("\nMachines", "node", "state", "what is wrong")
    for machine in found["machines"]:
        machines.add_row(cell(machine["node"]), cell(machine["state"]), cell(_wrong(machine)))
    put(machines)


def _value(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value


def _wrong(machine: dict[str, Any]) -> str:
    faults = []
    if machine["notice"] is not None:
        faults.append(f"the cloud takes it in {max(0, round(machine['notice'] - time.time()))} s")
    faults += [word for key, word in (("frozen", "frozen"), ("cut", "no network")) if machine[key]]
    if not machine["registers"]:
        faults.append("never registers")
    return ", ".join(faults)
