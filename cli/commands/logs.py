"""`./cluster logs`: asks the login machine's own tool, and reads the files itself if that cannot answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType
from typing import TYPE_CHECKING

from cli.providers.interface import HasFilesHere, HasLoginMachine
from cli.providers.login_machine import environment_of
from infra.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError
from node.logs import show as here
from node.logs.find import CONTROLLER, Cluster
from operations.access import TOOL
from operations.signals import handled_signals

if TYPE_CHECKING:
    from node.design.model import Settings
    from operations.access import Command, StackUp

BROKEN = 126
"""The status of a tool that cannot be run or has no `logs`: it is older, or its interpreter is missing."""


def show(machine: HasLoginMachine, up: StackUp, what: str | None, *, lines: int, follow: bool) -> int:
    """Print the last lines of the logs of the controller, a node or a job.

    Args:
        what: A node's name or a job's id; `None` means the controller.
        lines: The number of lines of each log.
        follow: Whether to go on as the logs grow.

    Returns:
        The exit status; 130 if following was interrupted.

    Raises:
        UserError: The cluster is not up.
    """
    what = what or CONTROLLER
    arguments = [TOOL, "logs", what, f"--lines={lines}", *(["--follow"] if follow else [])]
    try:
        status = _run(machine.access(up, arguments, tty=False))
        why = "the login machine's own tool for logs does not work"
    except UserError as error:
        # The cluster is not up, half up, or its controller is dead; its files may still exist.
        settings = _settings(machine, up)
        if settings is None:
            raise
        status, why = BROKEN, str(error)
    if status != BROKEN:
        return status
    settings = _settings(machine, up)
    if settings is None:
        raise UserError(f"{why}. {up.up_again('brings it up to date')}.", code="logs.tool-broken")
    print(f"{why}\nThese are the last lines of its log files:\n", file=sys.stderr)
    return here.run(Cluster(settings), what, lines=lines, follow=follow)


def _settings(machine: HasLoginMachine, up: StackUp) -> Settings | None:
    return machine.settings_here(up) if isinstance(machine, HasFilesHere) else None


def _run(command: Command) -> int:
    """Run the command with its output passed through, and return its exit status."""
    children: list[subprocess.Popen[str]] = []
    presses = 0

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        # The terminal has interrupted the child as well, so the first Ctrl-C ends it.
        if presses > 1:
            for child in children:
                child.kill()

    before = signal.getsignal(signal.SIGINT)
    if signal.SIGINT in handled_signals():
        signal.signal(signal.SIGINT, interrupted)
    try:
        child = subprocess.Popen(
            command.argv,
            env=environment_of(command),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        _, words = child.communicate()
    except OSError:
        return BROKEN
    finally:
        # After an interruption this program ends anyway, so a further Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.SIG_IGN if presses else before)
    if presses:
        return EXIT_INTERRUPTED
    if child.returncode == EXIT_USAGE or "Traceback (most recent call last)" in words:
        return BROKEN
    print(words, end="", file=sys.stderr)
    return child.returncode
