"""`./cluster init`: write the stack file of a new cluster, from answers on a terminal or from options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import project

if TYPE_CHECKING:
    from cli.commands.init.choices import Choices

EPILOG = (
    "In KEY=VALUE, KEY is a key of the section in infra/schema/stack.json, and VALUE is YAML: spot=true, "
    "zones=[us-east-1a,us-east-1b]. A partition takes accelerator=TYPE:COUNT and nodes=MIN-MAX as well."
)


def init(
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            "-s",
            metavar="NAME",
            help="The new stack's name: its file will be Pulumi.<stack>.yaml.",
            show_default=False,
        ),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="aws, gcp, or local.", show_default=False)
    ] = None,
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="AWS region.", show_default=False)
    ] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Google Cloud zone.", show_default=False)
    ] = None,
    gcp_project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="Google Cloud project.", show_default=False)
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE[,KEY=VALUE…]",
            help="A partition and its instance type, as in compute=g5.xlarge,nodes=0-10. Repeatable.",
            show_default=False,
        ),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(metavar="TYPE[,KEY=VALUE…]", help="The controller's instance type.", show_default=False),
    ] = None,
    login: Annotated[
        str | None,
        typer.Option(metavar="COUNT[,KEY=VALUE…]", help="How many login machines.", show_default=False),
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND[,KEY=VALUE…]",
            help="home, apps, scratch or local_scratch, as in scratch=fsx_lustre,size_gib=1200. Repeatable.",
            show_default=False,
        ),
    ] = None,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="WAY", help="How to log in: ssm (AWS), iap (Google Cloud), ssh.", show_default=False
        ),
    ] = None,
    ssh_cidr: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="With --access ssh: a network that may log in. Repeatable.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --access ssh on AWS: your EC2 key pair.", show_default=False),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NODES[,KEY=VALUE…]", help="Train after `up`, on this many nodes.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Any other key, as in cluster.budget.max_usd=20 or benchmark.enabled=false. Repeatable.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the file on standard output instead of writing it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the stack's file if there is one.")] = False,
) -> None:
    """Write the stack file of a new cluster.

    On a terminal it asks for what the options leave open. Without a terminal it needs --stack, --provider,
    --partition, and the cloud's --region, or --zone and --project. A file with a mistake is never written.
    """
    from cli.commands.init.choices import Choices

    choices = Choices(
        stack=stack,
        provider=provider,
        region=region,
        zone=zone,
        project=gcp_project,
        partitions=tuple(partition or ()),
        controller=controller,
        login=login,
        storage=tuple(storage or ()),
        access=access,
        ssh_cidrs=tuple(ssh_cidr or ()),
        key=key,
        benchmark=benchmark,
        settings=tuple(settings or ()),
    )
    completed = _completed(choices, new=not (force or dry_run))
    _write(completed, dry_run=dry_run, new=not (force or dry_run), by_hand=completed != choices)


def check_new(name: str, *, new: bool) -> Path:
    """Return the path of a new stack's file.

    Args:
        name: The stack.
        new: Whether the file must not exist.

    Raises:
        UserError: A stack cannot have this name (exit 2), or has a file already (exit 3).
    """
    from infra.config.stack_file import check_stack_name
    from infra.errors import EXIT_REFUSED, UserError
    from infra.program.stack import Stack

    path = Stack(project(), check_stack_name(name, project())).file
    if new and os.path.lexists(path):
        raise UserError(
            f"{path.name} exists, and is not changed: take another name, or replace it with --force",
            EXIT_REFUSED,
            code="init.file-exists",
        )
    return path


def _completed(choices: Choices, *, new: bool) -> Choices:
    """Return the choices with what the user answers; without a terminal nothing may be missing."""
    from infra.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError

    if choices.stack is not None:
        check_new(choices.stack, new=new)
    missing = choices.missing()
    if not missing:
        return choices
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        lines = [f"  {option:<12} {meaning}" for option, meaning in missing.items()]
        raise UserError(
            "\n".join(
                [
                    "`init` has no terminal to ask on, and these options are missing:",
                    *lines,
                    "For example: ./cluster init --stack my-cluster --provider aws --region us-east-1 "
                    "--partition compute=m5.large,nodes=0-10",
                ]
            ),
            EXIT_USAGE,
            code="init.options-missing",
        )
    from cli.commands.init.questions import ask

    try:
        return ask(choices, lambda name: check_new(name, new=new))
    except typer.Abort:
        raise UserError(
            "interrupted: nothing was written", EXIT_INTERRUPTED, code="init.interrupted"
        ) from None


def _write(choices: Choices, *, dry_run: bool, new: bool, by_hand: bool) -> None:
    """Check the new stack, write its file, and tell what it costs and what to do next.

    Args:
        choices: The whole description.
        dry_run: Whether to print the file instead.
        new: Whether the file must not exist.
        by_hand: Whether the user answered questions, so that the command line is worth showing.
    """
    from cli.commands.init.choices import for_new_stack
    from cli.commands.init.commented import stack_file_text
    from cli.console.progress import Console
    from cli.hints import hint
    from infra import cost
    from infra.additions import bake_time
    from infra.config import ConfigError, distributions, parse, placeholders
    from infra.design import design
    from infra.instance_types.catalog import catalog
    from infra.program.files import write_atomically

    stack = str(choices.stack)
    path = check_new(stack, new=new)
    values = choices.config()
    try:
        config = parse(values, stack, project=project())
    except ConfigError as error:
        mistakes = for_new_stack(error.mistakes)
        raise ConfigError(f"{path.name}, which was not written", mistakes) from None
    text = stack_file_text(values, stack)
    price = cost.cost(design(config, catalog()))
    snapshot = "" if config.provider == "local" else f" (prices of {price['prices_of']})"
    lines = [f"It costs {cost.sentence(price)}{snapshot}."]
    if config.cluster.slurm.source is not None and not choices.sets("cluster.slurm.source"):
        lines.append(
            f"Its machines need {distributions.chosen_row(config.cluster, catalog()).title}, whose own Slurm "
            "nobody maintains. By image: {bake: true} and slurm: {source: …} the first `up` builds one that "
            f"is maintained, which takes {bake_time(design(config, catalog()))}."
        )
    if config.placeholders:
        lines += ["", placeholders.listed(config.placeholders)]
    if dry_run:
        print(text, end="")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
        lines = [
            f"{path.name} is written.",
            *lines,
            "",
            "Next:",
            f"  {hint('plan', stack)}   what it makes and costs; needs no account",
            f"  {hint('up', stack)}     bring it up",
        ]
    if by_hand:
        lines += ["", f"The same without questions:\n  {choices.command_line()}"]
    Console().say("\n".join(lines))
