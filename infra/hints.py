"""Commands that a message tells a person to type."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def hint(command: str, stack: str, rest: str = "") -> str:
    """A command line of this program that acts on a stack: `./cluster exec --stack team-b -- squeue`.

    `--stack local` is left away where a bare command means that stack; any other stack is always named, since
    a message is read later, and elsewhere, than it was written.

    Args:
        command: its words up to the options: `exec`, `chaos thaw debug-0`.
        rest: what follows, such as `-- squeue`.
    """
    named = "" if _is_usual(stack) else f" --stack {stack}"
    return f"./cluster {command}{named}" + f" {rest}" * bool(rest)


def _is_usual(stack: str) -> bool:
    from infra.runner import selection

    return stack == selection.USUAL == _default(os.environ.get("SLURM_STACKS_PROJECT", ""))


@functools.cache
def _default(project: str) -> str:
    from infra.runner import selection

    return selection.default(Path(project)).stack if project else ""
