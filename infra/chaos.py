"""`./cluster chaos`: let things go wrong on the local cloud, to see what becomes of the jobs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from infra.options import UNNAMED, Json, Stack, load, project

app = typer.Typer(
    help="Machines that die, quotas, a cloud that refuses: test your jobs (local stacks).",
    short_help="Faults of the local cloud on request: test your jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Node = Annotated[str, typer.Argument(help="A node's name, as `./cluster status` shows it.")]
NOTICE_SECONDS = 30.0
LONGEST_NOTICE = 86400.0


@app.command()
def show(stack: Stack = UNNAMED, json_output: Json = False) -> None:
    """What holds now, and which machines something is wrong with."""
    from infra.local import chaos

    found = chaos.show(project(), load(stack))
    if json_output:
        print(json.dumps(found, indent=1))
        return
    from infra.console.chaos import show_chaos

    show_chaos(found)


@app.command("set", no_args_is_help=True)
def set_keys(
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="`show` lists the keys.", show_default=False)
    ],
    stack: Stack = UNNAMED,
) -> None:
    """Set keys anew: quota_nodes=2 api_error=throttled

    KEY= without a value, or KEY=null, removes a limit or a fault. All of the changes are made, or none.
    """
    from infra.local import chaos

    print(chaos.change(project(), load(stack), changes))


@app.command()
def clear(stack: Stack = UNNAMED) -> None:
    """Go back to the stack file; machines go on."""
    from infra.local import chaos

    print(chaos.clear(project(), load(stack)))


@app.command()
def kill(node: Node, stack: Stack = UNNAMED) -> None:
    """Take a machine's power away."""
    _act("kill", node, stack)


@app.command()
def freeze(node: Node, stack: Stack = UNNAMED) -> None:
    """Have a machine stand still, until `thaw`."""
    _act("freeze", node, stack)


@app.command()
def thaw(node: Node, stack: Stack = UNNAMED) -> None:
    """Have a machine that stands still go on."""
    _act("thaw", node, stack)


@app.command()
def cut(node: Node, stack: Stack = UNNAMED) -> None:
    """Take a machine's network away, until `join`."""
    _act("cut", node, stack)


@app.command()
def join(node: Node, stack: Stack = UNNAMED) -> None:
    """Give a machine its network back."""
    _act("join", node, stack)


@app.command()
def preempt(
    node: Node,
    stack: Stack = UNNAMED,
    notice: Annotated[
        float, typer.Option("--notice", help="Seconds from the notice to the end.", min=0, max=LONGEST_NOTICE)
    ] = NOTICE_SECONDS,
) -> None:
    """Have the cloud take a machine back, after a notice."""
    _act("preempt", node, stack, notice)


def _act(action: str, node: str, stack: str, notice: float | None = None) -> None:
    from infra.local import chaos

    print(chaos.act(project(), load(stack), action, node, notice))
