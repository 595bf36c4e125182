"""Runs things on a cluster's login machine: its own tool, any command, or a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli import hints
from cli.providers.interface import HasFilesHere, HasLoginMachine, KnowsMachines
from infra.errors import EXIT_REFUSED, EXIT_USAGE, NotUpError, UserError
from node.logs.text import printable
from node.slurm.environment import without_job
from node.system import foreign
from operations import programs
from operations.access import TOOL

if TYPE_CHECKING:
    from operations.access import Command, StackUp

TOOL_SECONDS = 90.0
STATUS_SECONDS = 30.0
OURS = ("SLURM_STACKS_PROJECT", hints.COMMAND)


def replace_process(machine: HasLoginMachine, up: StackUp, argv: Sequence[str], greeting: str = "") -> None:
    """Replace this process by the command, so that stdin, stdout and the exit status are its own.

    Args:
        argv: The command; empty means a shell.
        greeting: What to print before, on standard error, if the cluster is up.

    Raises:
        UserError: The cluster is not up, or there is no such command.
    """
    command = machine.access(up, argv, tty=sys.stdin.isatty() and not argv)
    if greeting:
        print(greeting, file=sys.stderr)
    try:
        os.execvpe(command.argv[0], command.argv, environment_of(command))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # an empty name is a ValueError
        raise UserError(
            f"{command.argv[0]}: no such command on the login machine", 127, code="exec.no-command"
        ) from None
    except OSError as error:
        # Not executable, without an interpreter, or for another kind of machine; the text is as a shell's.
        raise UserError(
            f"{command.argv[0]}: cannot be executed: {error.strerror}", 126, code="exec.not-executable"
        ) from None


def read_terminal(outputs: str) -> None:
    """Let a shell read the terminal where `--outputs -` has read standard input to its end.

    Raises:
        UserError: There is no terminal.
    """
    from cli.outputs import is_stdin

    if not is_stdin(outputs):
        return
    try:
        os.dup2(os.open("/dev/tty", os.O_RDWR), 0)
    except OSError:
        raise UserError(
            f"--outputs {outputs} has read standard input to its end, and a shell needs it, because there is "
            "no terminal: give a file (`--outputs outputs.json`), or a command for the login machine",
            EXIT_USAGE,
            code="outputs.stdin-taken",
        ) from None


def _cluster_of(up: StackUp) -> str:
    return up.named if up.published else f"the cluster of {up.named}"


def environment_of(command: Command) -> dict[str, str]:
    """Return the environment of a program that a user starts: the user's own, and what the command needs.

    What this program set for itself is left out, because sbatch would pass Pulumi's secrets on to the job. So
    is what Slurm, of whichever cluster, has set for a job in which this shell may be: the command runs on
    the login machine, which is in no job.
    """
    kept = {
        name: value
        for name, value in without_job(os.environ).items()
        if name not in OURS and not name.startswith("PULUMI_")
    }
    return kept | command.env


def tool(
    machine: HasLoginMachine,
    up: StackUp,
    *arguments: str,
    text: str = "",
    seconds: float | None = None,
) -> str:
    """Run the cluster's own tool on its login machine and return its output.

    Args:
        text: The tool's standard input.
        seconds: The time limit; TOOL_SECONDS by default.

    Raises:
        UserError: The tool failed; the message is its own.
    """
    command = machine.access(up, [TOOL, *arguments], tty=False)
    seconds = TOOL_SECONDS if seconds is None else seconds
    result = programs.capture(command.argv, env=environment_of(command), text=text, seconds=seconds)
    if result.status == programs.TIMED_OUT:
        raise UserError(
            f"{_cluster_of(up)} did not answer within {seconds:g} s",
            code="cluster.no-answer",
        )
    if result.failed:
        raise UserError(
            "\n".join(map(printable, result.err.strip().splitlines()))
            or f"{TOOL} {' '.join(arguments)} failed and printed nothing",
            code="tool.failed",
        )
    return result.out


def show_status(up: StackUp, status: dict[str, Any]) -> None:
    """Print the status of a Slurm cluster as tables.

    Raises:
        UserError: Another version's cluster answers in a form that this one cannot show.
    """
    from cli import slurm_release
    from cli.console.status import show_release, show_status

    outputs = None if up.published is None else up.published.option
    on_this_machine = up.provider == "local" and outputs is None
    try:
        show_status(status, up.stack.name, on_this_machine=on_this_machine, outputs=outputs)
        show_release(*slurm_release.running(up, status))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{up.named} answers with a status that this version cannot show ({printable(repr(error))}): "
            f"`{up.command('status', '--json')}` prints it as it is",
            code="status.other-form",
        ) from error


def cluster_status(machine: HasLoginMachine, up: StackUp) -> dict[str, Any]:
    """Return the status contract (`./cluster status --json`) from the cluster itself.

    Raises:
        UserError: The cluster is not up or does not answer; the message says which part, and where to look.
            If the provider refuses access (no credentials), it is exit 3 and the provider's own message.
    """
    look = f"`{up.command('logs')}`"
    try:
        return _with_life(parsed(tool(machine, up, "status", seconds=STATUS_SECONDS)), up)
    except NotUpError as error:
        if not isinstance(machine, HasFilesHere) or machine.settings_here(up) is None:
            raise
        raise UserError(
            f"{up.named} is half up: its controller cannot report its status yet. {look} shows "
            f"how far it came, {up.up_again('goes on')}.",
            code="cluster.half-up",
        ) from error
    except UserError as error:
        if error.exit_code == EXIT_REFUSED:
            # The cluster was not asked, so its logs say nothing, and access to them would be refused as well.
            raise
        # Who has only the outputs may have no rights in the account, and no `up`.
        if (
            up.published is None
            and isinstance(machine, KnowsMachines)
            and (why := machine.silence(up)) is not None
        ):
            raise why from error
        raise UserError(f"{error}\n{look} shows what it said last.", code="cluster.no-status") from error


def _with_life(found: dict[str, Any], up: StackUp) -> dict[str, Any]:
    """Add whether the command that has closed partitions still works, which this machine may know."""
    if not isinstance(found.get("closed"), dict):
        return found
    from cli.changes import closing

    return {**found, "closed": closing.with_life(found["closed"], up.stack)}


def parsed(answer: str) -> dict[str, Any]:
    """Return the object in the tool's answer.

    Raises:
        UserError: It is none. The machine may be anybody's.
    """
    try:
        parsed = foreign.parse(answer)
    except ValueError as error:
        raise UserError(f"the answer is no JSON: {printable(str(error))}", code="tool.no-json") from None
    if not isinstance(parsed, dict):
        raise UserError("the answer is no object", code="tool.no-json")
    return parsed
