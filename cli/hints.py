"""Command lines and official installation pages, for messages that tell the user what to do."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from operations import pages

HOW_TO_INSTALL = f"Install the Pulumi CLI ({pages.PULUMI}), put `pulumi` on PATH, and run the command again."


def hint(command: str, stack: str, rest: str = "", outputs: str | None = None) -> str:
    """Return a command line of this program that acts on a stack: `./cluster exec --stack team-b -- squeue`.

    `--stack local` is omitted if a command without it means that stack. Any other stack is always named,
    because a message may be read later and in another shell.

    Args:
        command: The words before the options, such as `exec` or `chaos thaw debug-0`.
        rest: The words after the options, such as `-- squeue`.
        outputs: The value of `--outputs`, where that takes the stack's place.
    """
    if outputs is not None:
        named = f" --outputs {shlex.quote(outputs)}"
    else:
        named = "" if _is_usual(stack) else f" --stack {stack}"
    return f"./cluster {command}{named}" + f" {rest}" * bool(rest)


def left_over(stack: str, left: Sequence[str], command: str) -> str:
    """Return the message about what is left of a stack that was taken down, with the command to run again."""
    lines = "\n".join(f"  {line}" for line in left)
    return f"these are left of stack {stack}:\n{lines}\nRun `{command}` again."


def _is_usual(stack: str) -> bool:
    from cli.runner import selection

    return stack == selection.USUAL == _default(os.environ.get("SLURM_STACKS_PROJECT", ""))


@functools.cache
def _default(project: str) -> str:
    from cli.runner import selection

    return selection.default(Path(project)).stack.rpartition("/")[2] if project else ""
