"""The options that several commands share, and what follows from them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import hints
from infra.errors import EXIT_USAGE, UserError
from infra.program.stack import Stack

if TYPE_CHECKING:
    from infra.config import StackConfig
    from operations.access import StackUp


def project() -> Path:
    """Return the checkout that `./cluster` lies in."""
    return Path(os.environ["SLURM_STACKS_PROJECT"])


def stack_named(name: str) -> Stack:
    """Return a stack of this checkout, whose name is checked later: a parser's errors have no code."""
    return Stack(project(), name)


def default_stack() -> str:
    """Return the stack of a command without `--stack`. If a setting chose it, standard error names that."""
    from cli import selection

    chosen = selection.default(project())
    if chosen.by is not None:
        print(f"stack {chosen.stack}, chosen by {chosen.by}", file=sys.stderr)
    return chosen.stack


def checked(context: typer.Context, stack: Stack | None) -> Stack | None:
    """Return the stack that a command names, or the default stack; `None` where `--outputs` names a cluster.

    Raises:
        UserError: Exit 2; a stack cannot have that name, or both options are given.
    """
    if context.resilient_parsing:  # for the shell's completion
        return stack
    if context.params.get("outputs") is not None:
        if stack is None:
            return None
        raise UserError(
            f"--stack {stack.name} names a stack of this checkout, and --outputs a cluster of any program: "
            "give one of them",
            EXIT_USAGE,
            code="outputs.with-stack",
        )
    return _checked(default_stack() if stack is None else stack.name)


def checked_names(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Return what `checked` returns, for a command that takes several stacks."""
    if context.resilient_parsing:
        return names
    return [_checked(name).name for name in names or [default_stack()]]


def _checked(name: str) -> Stack:
    from infra.config import stack_file

    stack = stack_file.named(name, project())
    hints.name_in_full(stack)
    return stack


def known_stacks(incomplete: str) -> list[str]:
    """Return the stacks of this checkout whose names begin like this, for the shell's completion."""
    from infra.config import stack_file

    return [name for name in stack_file.stacks(project()) if name.startswith(incomplete)]


DEFAULT = "$SLURM_STACKS_STACK, Pulumi's selected one, or local"
StackOption = Annotated[
    Stack,
    typer.Option(
        "--stack",
        "-s",
        metavar="NAME",
        parser=stack_named,
        help="The stack: its file is Pulumi.<stack>.yaml. Its full name is organization/project/stack.",
        callback=checked,
        autocompletion=known_stacks,
        show_default=DEFAULT,
    ),
]
OutputsOption = Annotated[
    str | None,
    typer.Option(
        "--outputs",
        metavar="FILE|-|STACK[:OUTPUT]",
        help="Instead of a stack: a cluster of any program, by its outputs. A file with what `pulumi stack "
        "output --json` prints, - for standard input, or the full name of a Pulumi stack.",
        show_default=False,
        is_eager=True,  # --stack has a default, and asks for this one
    ),
]
StacksOption = Annotated[
    list[str],
    typer.Option(
        "--stack",
        "-s",
        metavar="NAME",
        help="The stack, repeatable to compare stacks.",
        show_default=DEFAULT,
        callback=checked_names,
        autocompletion=known_stacks,
    ),
]
UNNAMED: Any = None
"""The default of both options: their callback puts the default stack in its place."""
SweepNodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        "-n",
        metavar="N,N…",
        help="Numbers of nodes. Default: 1,2,4, as far as the partition has them; with AWS Batch 1,2,4,8 "
        "and so on, up to batch.nodes.",
        show_default=False,
    ),
]
SweepPartitionsOption = Annotated[
    str | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="NAME,NAME…",
        help="Names of partitions, as in cpu,gpu. Default: the benchmark's.",
        show_default=False,
    ),
]
SweepGpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="N,N…",
        help="Numbers of GPUs a node, as in 1,2,4. Default: the benchmark's, or all of a node's.",
        show_default=False,
    ),
]
SweepRepeatOption = Annotated[
    int | None,
    typer.Option(
        "--repeat",
        metavar="N",
        help="How often each run is made. Default: once.",
        min=1,
        max=100,
        show_default=False,
    ),
]


class Output:
    """What the command line asks of the output.

    Attributes:
        json: Whether a program reads it.
    """

    json = False


def note_json(value: bool) -> bool:
    """Note whether `--json` is given, so that an error is printed as JSON, too."""
    Output.json = value
    return value


Json = Annotated[bool, typer.Option("--json", callback=note_json, help="Machine-readable output.")]


def load(stack: Stack, *, scripts: bool = False) -> StackConfig:
    """Read and check the stack's file.

    Args:
        scripts: Whether the scripts that it names must exist, as for a deployment.
    """
    from infra.config import load_file

    return load_file(stack.file, stack.project, scripts=scripts)


def load_to_make(stack: Stack) -> StackConfig:
    """Read and check the stack's file for `up`: nothing may be left that its user has to fill in.

    Raises:
        UserError: With exit code 2: the file has mistakes or placeholders; the message has all of them.
    """
    from infra.config.placeholders import refuse

    config = load(stack, scripts=True)
    refuse(stack.file.name, config.placeholders)
    return config


def load_up(stack: Stack, outputs: str | None = None) -> StackUp:
    """Return what a command needs to act on a cluster that is up, even if its stack file has a mistake.

    A mistake is reported in one line, and the cluster is then found by this machine's records.

    Args:
        outputs: The value of `--outputs`, which takes the stack's place.

    Raises:
        UserError: The file has a mistake, and nothing is known to be up; or the outputs have no such cluster.
    """
    from operations.access import StackUp

    if outputs is not None:
        from cli import outputs as foreign

        published = foreign.read(outputs)
        cluster = published.cluster
        return StackUp(stack_named(cluster.name), cluster.provider, published=published)
    try:
        return StackUp.of(stack, load(stack))
    except UserError as error:
        from cli.providers import provider

        name = provider.of_cluster(stack)
        if name is None:
            raise
        from cli.console.progress import Console

        Console().say(f"{_in_short(error)} This is the cluster as it was brought up before.", "yellow")
        return StackUp(stack, name)


def _in_short(error: UserError) -> str:
    """Return the first of a stack file's mistakes, in one sentence."""
    from infra.config.mistakes import ConfigError

    mistakes = error.mistakes if isinstance(error, ConfigError) else ()
    if not mistakes:
        return str(error).splitlines()[0]
    head, first = str(error).splitlines()[0].removesuffix("."), mistakes[0]
    given = f" is {first.given}, and allowed is" if first.given else ": allowed is"
    return f"{head}{' (the first)' * (len(mistakes) > 1)}: {first.path}{given} {first.allowed.rstrip('.')}."
