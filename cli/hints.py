"""Command lines and official installation pages, for messages that tell the user what to do."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from operations import pages

if TYPE_CHECKING:
    from infra.program.stack import Stack

HOW_TO_INSTALL = f"Install the Pulumi CLI ({pages.PULUMI}), put `pulumi` on PATH, and run the command again."

COMMAND = "SLURM_STACKS_COMMAND"
"""The variable in which `cli/__main__.py` says how this command can be run from the working folder."""
USUAL = "./cluster"
_USUAL = re.compile(r"(?<![\w./~-])\./cluster(?= [a-z-])")


def program() -> str:
    """Return this command as the shell in front of the user can run it.

    In the checkout that is `./cluster`, and in any other folder its absolute path: a `./cluster` there would
    be somebody else's.
    """
    return shlex.quote(os.environ.get(COMMAND) or USUAL)


_FULL: dict[str, str] = {}
"""The short name of a stack -> its full name, where the short one would mean another organization's stack."""


def name_in_full(stack: Stack) -> None:
    """Have the commands in messages name a stack's organization, until its short name means that one.

    After the first `up` from here it does (`cli.engine.organization`).
    """
    from infra.program import clusters

    if stack.named_organization is not None and clusters.of(stack) is None:
        _FULL[stack.name] = stack.engine_name


def from_here(text: str) -> str:
    """Return a message whose commands can be pasted in the working folder."""
    for short, full in _FULL.items():
        text = re.sub(rf"(?<= --stack ){re.escape(short)}(?![\w./-])", lambda _, full=full: full, text)  # type: ignore[misc]
    return text if (name := program()) == USUAL else _USUAL.sub(lambda _: name, text)


class FromHere:
    """A stream of messages, which are written as `from_here` returns them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(from_here(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
    from cli import selection

    return stack not in _FULL and stack == selection.USUAL == _default(
        os.environ.get("SLURM_STACKS_PROJECT", "")
    )


@functools.cache
def _default(project: str) -> str:
    from cli import selection

    return selection.default(Path(project)).stack.rpartition("/")[2] if project else ""
