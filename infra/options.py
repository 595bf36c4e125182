"""What the commands' options mean, in one place for all of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.errors import UserError

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.provider import StackUp


def default_stack() -> str:
    """The stack of a command without `--stack`; where something chose it, a line says what."""
    from infra.runner import selection

    chosen = selection.default(project())
    if chosen.by is not None:
        print(f"stack {chosen.stack}, chosen by {chosen.by}", file=sys.stderr)
    return chosen.stack


def checked(context: typer.Context, stacks: Any) -> Any:
    """One stack's name, or several, if stacks can be called so; the default where none is given."""
    from infra.config.stack_file import check_stack_name

    if context.resilient_parsing:  # for the shell's completion
        return stacks
    several = context.command.name == "report"
    if stacks is None or (several and not stacks):
        stacks = [default_stack()] if several else default_stack()
    for name in stacks if several else [stacks]:
        check_stack_name(name, project())
    return stacks


def known_stacks(incomplete: str) -> list[str]:
    """The stacks of this checkout that begin so, for the shell's completion."""
    files = project().glob("Pulumi.?*.yaml")
    names = sorted(file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files)
    return [name for name in names if name.startswith(incomplete)]


DEFAULT = "$SLURM_STACKS_STACK, Pulumi's selected one, or local"
Stack = Annotated[
    str,
    typer.Option(
        "--stack",
        "-s",
        help="The stack: its file is Pulumi.<stack>.yaml.",
        callback=checked,
        autocompletion=known_stacks,
        show_default=DEFAULT,
    ),
]
UNNAMED: Any = None
"""The default of `Stack`: `checked` puts the stack's name in its place."""
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def project() -> Path:
    """The checkout that `./cluster` lies in."""
    return Path(os.environ["SLURM_STACKS_PROJECT"])


def load(stack: str, *, scripts: bool = False) -> StackConfig:
    """The stack's file, read and checked; to deploy, with the scripts that it names."""
    from infra.config import load_file

    return load_file(project() / f"Pulumi.{stack}.yaml", scripts=scripts)


def load_up(stack: str) -> StackConfig | StackUp:
    """What a command needs to act on a cluster that is up, whatever its stack file says by now.

    Where the file has a mistake, a line says so, and the cluster is found by what is known of it here.

    Raises:
        UserError: the file has a mistake, and nothing is known to be up.
    """
    try:
        return load(stack)
    except UserError as error:
        from infra import providers
        from infra.provider import StackUp

        name = providers.of_cluster(project(), stack)
        if name is None:
            raise
        from infra.console.progress import Console

        Console().say(f"{_in_short(error)} This is the cluster as it was brought up before.", "yellow")
        return StackUp(stack, name)


def _in_short(error: UserError) -> str:
    """The first of a stack file's mistakes, in one sentence."""
    from infra.config.mistakes import ConfigError

    mistakes = error.mistakes if isinstance(error, ConfigError) else ()
    if not mistakes:
        return str(error).splitlines()[0]
    head, first = str(error).splitlines()[0].removesuffix("."), mistakes[0]
    given = f" is {first.given}, and allowed is" if first.given else ": allowed is"
    return f"{head}{' (the first)' * (len(mistakes) > 1)}: {first.path}{given} {first.allowed.rstrip('.')}."
