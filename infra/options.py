"""What the commands' options mean, in one place for all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from infra.config import StackConfig


def checked(stacks: Any) -> Any:
    """One stack's name, or several, unchanged, if stacks can be called so."""
    from infra.config.stack_file import check_stack_name

    for name in [stacks] if isinstance(stacks, str) else stacks or []:
        check_stack_name(name, project())
    return stacks


Stack = Annotated[
    str,
    typer.Option("--stack", "-s", help="The stack: its file is Pulumi.<stack>.yaml.", callback=checked),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def project() -> Path:
    """The checkout that `./cluster` lies in."""
    return Path(os.environ["SLURM_STACKS_PROJECT"])


def load(stack: str, *, scripts: bool = False) -> StackConfig:
    """The stack's file, read and checked; to deploy, with the scripts that it names."""
    from infra.config import load_file

    return load_file(project() / f"Pulumi.{stack}.yaml", scripts=scripts)
