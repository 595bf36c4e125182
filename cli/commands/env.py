"""`./cluster env`: the Python environments of a cluster, and how to make one of your own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import UNNAMED, Json, StackOption, load_up
from infra.errors import EXIT_USAGE, UserError
from infra.program.stack import Stack

if TYPE_CHECKING:
    from operations.access import StackUp


app = typer.Typer(
    help="List or make Python environments of the cluster, which jobs on all machines can use.",
    short_help="List the cluster's Python environments, or make one of your own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
LOCKED = {"cpu": "the training environment", "gpu": "the training environment with GPUs"}


@app.command("list")
def list_all(stack: StackOption = UNNAMED, json_output: Json = False) -> None:
    """List the environments, what they are made from, and the line that activates each."""
    listed = environments(load_up(stack))
    if json_output:
        print(json.dumps(listed, indent=1))
        return
    from cli.console.tables import cell, new_table, put

    table = new_table("Environments", "name", "made from", "python", "state")
    for environment in listed:
        state = "complete" if environment["complete"] else "not complete"
        table.add_row(
            *(
                cell(value)
                for value in (environment["name"], environment["source"], environment["python"], state)
            )
        )
    put(table)
    for environment in listed:
        if environment["complete"]:
            put(f"\nActivate {environment['name']} in a shell there, or in a job's script:")
            put(f". {environment['path']}/bin/activate")


@app.command(no_args_is_help=True)
def make(
    requirements: Annotated[
        Path, typer.Argument(help="A requirements file, as pip reads it.", show_default=False)
    ],
    stack: StackOption = UNNAMED,
) -> None:
    """Make an environment from a requirements file, if it is not there yet."""
    from cli.console.progress import Console
    from cli.engine import lock
    from cli.providers import provider
    from cli.providers.interface import MakesEnvironments, need

    if not requirements.is_file():
        raise UserError(
            f"{requirements}: there is no such file", EXIT_USAGE, code="environment.no-requirements"
        )
    up = load_up(stack)
    maker = need(provider.of(up), MakesEnvironments, up, requirements.name)
    with lock.locked(stack, "env make", shared=True):
        environment = maker.make_environment(stack, requirements.resolve())
    Console().say("activate it in a shell of the login machine or in a job's script:")
    print(f". {environment}/bin/activate")


def environments(up: StackUp) -> list[dict[str, Any]]:
    """Return the cluster's environments (`training.environments`), each with its `source`: a file, or null.

    Raises:
        UserError: The cluster is not up or does not answer.
    """
    from cli.providers import login_machine, provider

    answer = login_machine.tool(provider.machine(up, "env list"), up, "environments")
    listed: list[dict[str, Any]] = json.loads(answer)
    known = _known(up.stack)
    return [{**environment, "source": known.get(environment["name"])} for environment in listed]


def _known(stack: Stack) -> dict[str, str]:
    """Return what each environment is made from, by its name, as far as this checkout tells."""
    from infra import environments as made
    from infra.config import load_file

    known = {made.lock_digest(stack.project, kind): text for kind, text in LOCKED.items()}
    try:
        benchmark = load_file(stack.file, stack.project).benchmark
        if benchmark is not None and (name := benchmark.requirements) is not None:
            known[made.digest("cpu", name, stack.project)] = name
    except UserError:  # the stack file or the file that it names has a mistake, and the list needs neither
        pass
    return known
