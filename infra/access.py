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
from infra.errors import UserError

if TYPE_CHECKING:
    from infra.config import StackConfig

TOOL = "slurm-stacks"
TOOL_SECONDS = 90.0


def replace_process(project: Path, config: StackConfig, argv: Sequence[str]) -> None:
    """Become the command (a shell for an empty `argv`): stdin, stdout and exit status pass through.

    Raises:
        UserError: the cluster is not up, or there is no such command.
    """
    chosen = providers.load(config.cluster.provider)
    command = chosen.access(project, config.stack, {}, argv, tty=sys.stdin.isatty() and not argv)
    env = {**os.environ, **command.env}
    # What this program set for itself is none of the command's business.
    for name in ("SLURM_STACKS_PROJECT", "UV_COMPILE_BYTECODE", "UV_PYTHON_DOWNLOADS"):
        env.pop(name, None)
    try:
        os.execvpe(command.argv[0], command.argv, env)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError is the empty name's
        raise UserError(f"{command.argv[0]}: no such command on the login machine", 127) from None
    except OSError as error:
        # Not executable, no interpreter named, of another machine: as a shell says it.
        raise UserError(f"{command.argv[0]}: cannot be executed: {error.strerror}", 126) from None


def tool(project: Path, config: StackConfig, *arguments: str, text: str = "") -> str:
    """Run the cluster's own tool on its login machine and return its output.

    Raises:
        UserError: it failed; the message is its own.
    """
    chosen = providers.load(config.cluster.provider)
    command = chosen.access(project, config.stack, {}, [TOOL, *arguments], tty=False)
    env = {**os.environ, **command.env}
    try:
        result = subprocess.run(
            command.argv,
            env=env,
            input=text,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the cluster of stack {config.stack} did not answer within {TOOL_SECONDS:g} s"
        ) from None
    if result.returncode:
        raise UserError(result.stderr.strip() or f"{TOOL} {' '.join(arguments)} failed without a word")
    return result.stdout


def cluster_status(project: Path, config: StackConfig) -> dict[str, Any]:
    """The status contract (`./cluster status --json`) from the cluster itself."""
    found: dict[str, Any] = json.loads(tool(project, config, "status"))
    return found
