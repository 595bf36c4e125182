"""What runs every command of a resource: an interpreter that finds the code of this project on any machine.

A command and its interpreter are in a stack's state, and whatever changes one is a change of its resource. So
they name no folder of one machine. The interpreter looks in these places, in this order:

1. `$SLURM_STACKS_CODE`, for whoever keeps the code elsewhere;
2. the folder in which the engine runs commands, which is the checkout when its own program runs;
3. the code whose component ran last on this machine (`remember`);
4. the plugins that the engine has installed. It installs those that a state needs before it destroys a stack.

A command is a line such as `operations.aws wait --stack train`: a module of `operations`, and its arguments.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path

from infra.program import locations

VARIABLE = "SLURM_STACKS_CODE"
CODE = "code"
"""The link in the user's state folder to the code whose component ran last."""
_APP = locations.APPLICATION
_FIND = (
    f'for d in "${{{VARIABLE}:-.}}" "${{XDG_STATE_HOME:-$HOME/.local/state}}/{_APP}/{CODE}" '
    f'"${{PULUMI_HOME:-$HOME/.pulumi}}"/plugins/resource-*{_APP}*; do '
    'd=$(CDPATH= cd -P -- "$d" 2>/dev/null && pwd -P) || continue; p=$d/.venv/bin/python; '
    '[ -x "$p" ] && [ -e "$d/operations/__main__.py" ] && '
    'eval "exec \\"\\$p\\" \\"\\$d/operations\\" $1"; done; '
    f'echo "{_APP} is not on this machine: run pulumi preview in the program that has the cluster, which '
    f'brings it, or set {VARIABLE} to a checkout" >&2; exit 3'
)
INTERPRETER = ("sh", "-c", _FIND, _APP)
"""The program and arguments to which the engine adds the line. They have no per cent sign, which OpenSSH
would expand in a ProxyCommand."""
Run = Callable[[str], str]
"""Returns the command that runs a line."""


def anywhere(line: str) -> str:
    """Return the command that runs a line on any machine.

    It is one simple command, so that OpenSSH can `exec` it.
    """
    return shlex.join([*INTERPRETER, line])


def here(project: Path) -> Run:
    """Return what stands for `anywhere` in a ProxyCommand that this machine alone runs, from any folder."""
    words = [str(project / ".venv/bin/python"), str(project / "operations")]
    return lambda line: f"{shlex.join(words).replace('%', '%%')} {line}"


def remember(code: Path) -> None:
    """Note where the code of this process lies, for the commands of its resources.

    Without a folder to write in nothing is noted: the other places remain.

    Args:
        code: The folder with `operations/` and its environment.
    """
    link = locations.state_root() / CODE
    with contextlib.suppress(OSError):
        if link.is_symlink() and link.readlink() == code:
            return
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = link.with_name(f".{CODE}.{secrets.token_hex(8)}")
        draft.symlink_to(code)
        os.replace(draft, link)  # noqa: PTH105 (a link is replaced, not followed)
