"""Acting on a cluster's login machine from here: its own tool, any command, a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import providers
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.provider import TOOL

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.provider import StackUp

TOOL_SECONDS = 90.0
STATUS_SECONDS = 30.0
OURS = ("SLURM_STACKS_PROJECT", "UV_COMPILE_BYTECODE", "UV_PYTHON_DOWNLOADS")


def replace_process(project: Path, config: StackConfig | StackUp, argv: Sequence[str]) -> None:
    """Become the command (a shell for an empty `argv`): stdin, stdout and exit status pass through.

    Raises:
        UserError: the cluster is not up, or there is no such command.
    """
    chosen = providers.load(config.provider)
    command = chosen.access(project, config.stack, {}, argv, tty=sys.stdin.isatty() and not argv)
    env = {**os.environ, **command.env}
    # What this program set for itself is none of the command's business, and sbatch would hand Pulumi's
    # secrets on to the job.
    for name in list(env):
        if name in OURS or name.startswith("PULUMI_"):
            del env[name]
    try:
        os.execvpe(command.argv[0], command.argv, env)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError is the empty name's
        raise UserError(f"{command.argv[0]}: no such command on the login machine", 127) from None
    except OSError as error:
        # Not executable, no interpreter named, of another machine: as a shell says it.
        raise UserError(f"{command.argv[0]}: cannot be executed: {error.strerror}", 126) from None


def tool(
    project: Path,
    config: StackConfig | StackUp,
    *arguments: str,
    text: str = "",
    seconds: float | None = None,
) -> str:
    """Run the cluster's own tool on its login machine and return its output.

    Args:
        seconds: how long it may take; TOOL_SECONDS by default.

    Raises:
        UserError: it failed; the message is its own.
    """
    chosen = providers.load(config.provider)
    command = chosen.access(project, config.stack, {}, [TOOL, *arguments], tty=False)
    env = {**os.environ, **command.env}
    seconds = TOOL_SECONDS if seconds is None else seconds
    try:
        result = subprocess.run(
            command.argv,
            env=env,
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"the cluster of stack {config.stack} did not answer within {seconds:g} s") from None
    if result.returncode:
        raise UserError(result.stderr.strip() or f"{TOOL} {' '.join(arguments)} failed without a word")
    return result.stdout


def cluster_status(project: Path, config: StackConfig | StackUp) -> dict[str, Any]:
    """The status contract (`./cluster status --json`) from the cluster itself.

    Raises:
        UserError: it is not up, or does not answer; the message says which part, and where to look. Exit 3
            where the provider refuses the way there (no credentials): its own message.
    """
    look = f"`./cluster logs --stack {config.stack}`"
    try:
        found: dict[str, Any] = json.loads(tool(project, config, "status", seconds=STATUS_SECONDS))
    except NotUpError as error:
        if providers.load(config.provider).settings_here(project, config) is None:
            raise
        raise UserError(
            f"stack {config.stack} is half up: its controller did not come so far that it could tell its "
            f"status. {look} shows how far, `./cluster up --stack {config.stack}` goes on."
        ) from error
    except UserError as error:
        if error.exit_code == EXIT_REFUSED:
            # Nobody has been asked: its logs would say nothing of it, and be refused for the same cause.
            raise
        raise UserError(f"{error}\n{look} shows what it said last.") from error
    return found
