"""The beginning of every command line of a resource: it finds the code of this project on any machine.

A command line is in a stack's state, and whatever changes it is a change of its resource. So it names no
folder of one machine. It looks in these places, in this order:

1. `$SLURM_STACKS_CODE`, for whoever keeps the code elsewhere;
2. the folder in which the engine runs commands, which is the checkout when its own program runs;
3. the code whose component ran last on this machine (`remember`);
4. the plugins that the engine has installed. It installs those that a state needs before it destroys a stack.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from pathlib import Path

from infra.program import locations

VARIABLE = "SLURM_STACKS_CODE"
CODE = "code"
"""The link in the user's state folder to the code whose component ran last."""
_APP = locations.APPLICATION
_FIND = (
    f'for d in "${{{VARIABLE}:-.}}" "${{XDG_STATE_HOME:-$HOME/.local/state}}/{_APP}/{CODE}" '
    f'"${{PULUMI_HOME:-$HOME/.pulumi}}"/plugins/resource-*{_APP}*; do p=$d/.venv/bin/python; '
    '[ -x "$p" ] && [ -e "$d/operations/__main__.py" ] && exec "$p" "$d/operations" "$@"; done; '
    f'echo "{_APP} is not installed on this machine: run pulumi install in the program that has the cluster, '
    f'or set {VARIABLE} to a checkout" >&2; exit 3'
)
WORDS = ("sh", "-c", _FIND, _APP)
"""The words before `operations.NAME VERB …`. They are one simple command, so that OpenSSH can `exec` it, and
have no per cent sign, which OpenSSH would expand."""
RUN = shlex.join(WORDS)


def of(project: Path) -> str:
    """Return what stands for `RUN` in a ProxyCommand that this machine alone runs, from any folder."""
    return shlex.join([str(project / ".venv/bin/python"), str(project / "operations")]).replace("%", "%%")


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
