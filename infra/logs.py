"""`./cluster logs`: by the login machine's own tool; where that cannot answer, from the files themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from infra import providers
from infra.access import OURS
from infra.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError
from infra.node.logs import show as here
from infra.node.logs.find import CONTROLLER, Cluster
from infra.provider import TOOL
from infra.runner import interrupt

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.provider import Command, StackUp

BROKEN = 126
"""The tool cannot be run, or knows no `logs`: it is an older one, or has lost its interpreter."""


def show(project: Path, config: StackConfig | StackUp, what: str | None, *, lines: int, follow: bool) -> int:
    """The last lines of the controller's logs, of a node's or of a job's, on standard output.

    Returns:
        The exit status; 130 where following was interrupted.

    Raises:
        UserError: the cluster is not up.
    """
    chosen = providers.load(config.provider)
    what = what or CONTROLLER
    arguments = [TOOL, "logs", what, f"--lines={lines}", *(["--follow"] if follow else [])]
    try:
        status = _run(chosen.access(project, config.stack, {}, arguments, tty=False))
        why = "the login machine's own tool for logs does not work"
    except UserError as error:
        # Not up, half up, or its controller is dead: the files may be there all the same.
        settings = chosen.settings_here(project, config)
        if settings is None:
            raise
        status, why = BROKEN, str(error)
    if status != BROKEN:
        return status
    settings = chosen.settings_here(project, config)
    if settings is None:
        raise UserError(f"{why}. `./cluster up --stack {config.stack}` brings it up to date.")
    print(f"{why}\nThese are the files as they lie there:\n", file=sys.stderr)
    return here.run(Cluster(settings), what, lines=lines, follow=follow)


def _run(command: Command) -> int:
    """The command's exit status; what it shows is shown as it comes."""
    env = {name: value for name, value in os.environ.items() if name not in OURS} | command.env
    children: list[subprocess.Popen[str]] = []
    presses = 0

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        # The terminal has interrupted the child as well, and that is for it to end by.
        if presses > 1:
            for child in children:
                child.kill()

    before = signal.getsignal(signal.SIGINT)
    if signal.SIGINT in interrupt.heard():
        signal.signal(signal.SIGINT, interrupted)
    try:
        child = subprocess.Popen(
            command.argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        children.append(child)
        _, words = child.communicate()
    except OSError:
        return BROKEN
    finally:
        # Once interrupted we end: one more Ctrl-C has nothing left to interrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN if presses else before)
    if presses:
        return EXIT_INTERRUPTED
    if child.returncode == EXIT_USAGE or "Traceback (most recent call last)" in words:
        return BROKEN
    print(words, end="", file=sys.stderr)
    return child.returncode
