"""What runs every command of a resource: an interpreter that finds the code of this project on any machine.

A command and its interpreter are in a stack's state, and whatever changes one is a change of its resource. So
they name no folder of one machine. The interpreter looks in these places, in this order:

1. `$SLURM_STACKS_CODE`, for whoever keeps the code elsewhere;
2. the folder in which the engine runs commands, which is the checkout when its own program runs;
3. the code whose component ran last on this machine (`remember`);
4. the plugins that the engine has installed. It installs those that a state needs before it destroys a stack.

What people paste, such as `loginSsh`, looks in the same places but the second (`pasted`).

A command is a line such as `operations.aws wait --stack train`: a module of `operations`, and its arguments.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path

from infra.errors import UserError
from infra.program import locations

VARIABLE = "SLURM_STACKS_CODE"
CODE = "code"
"""The link in the user's state folder to the code whose component ran last."""
CHECKOUT = "checkout"
"""The link beside it to the checkout whose own program ran last, for commands that people paste."""
_APP = locations.APPLICATION
# The CLI's folder is below the home folder of the user database, whatever $HOME says (`pulumi_home`).
_HOME = '$(getent passwd "$(id -u)" | cut -d: -f6)'
_PLUGINS = f'"${{PULUMI_HOME:-{_HOME}/.pulumi}}"/plugins/resource-*{_APP}*'


def _search(places: str, *, check: str = "", options: str = "", advice: str) -> str:
    """Return the shell's text that runs the line `$1` with the first place that has the code.

    Args:
        places: The words of the places, in the shell's quotes.
        check: A command before a place `$d` is looked at.
        options: Python's options, each with a space behind it.
        advice: What the message says if no place has the code.
    """
    return (
        f"for d in {places}; do {check}"
        'd=$(CDPATH= cd -P -- "$d" 2>/dev/null && pwd -P) || continue; p=$d/.venv/bin/python; '
        '[ -x "$p" ] && [ -e "$d/operations/__main__.py" ] && '
        f'eval "exec \\"\\$p\\" {options}\\"\\$d/operations\\" $1"; done; '
        f'echo "{_APP} is not on this machine: {advice}" >&2; exit 3'
    )


_FIND = _search(
    f'"${{{VARIABLE}:-.}}" "${{XDG_STATE_HOME:-$HOME/.local/state}}/{_APP}/{CODE}" {_PLUGINS}',
    advice="run pulumi preview in the program that has the cluster, which brings it, or set "
    f"{VARIABLE} to a checkout",
)
INTERPRETER = ("sh", "-c", _FIND, _APP)
"""The program and arguments to which the engine adds the line. They have no per cent sign, which OpenSSH
would expand in a ProxyCommand."""
_FIND_PASTED = (
    "case ${XDG_STATE_HOME-} in /*) s=$XDG_STATE_HOME ;; *) s=$HOME/.local/state ;; esac; "
    + _search(
        f'"${{{VARIABLE}-}}" "$s/{_APP}/{CODE}" "$s/{_APP}/{CHECKOUT}" {_PLUGINS}',
        # Whoever pastes a command may stand in a folder where others write.
        check="case $d in /*) ;; *) continue ;; esac; ",
        options="-I ",
        advice=f"set {VARIABLE} to the absolute path of a checkout, or run pulumi preview in the program "
        "that has the cluster, which brings it",
    )
)
Run = Callable[[str], str]
"""Returns the command that runs a line."""


def anywhere(line: str) -> str:
    """Return the command that runs a line on any machine.

    It is one simple command, so that OpenSSH can `exec` it.
    """
    return shlex.join([*INTERPRETER, line])


def pasted(line: str) -> str:
    """Return the command that runs a line, for a person who may paste it in any folder.

    It runs nothing from the folder in which it is pasted: that need not be the engine's. So the second place
    is left out, the others count only as absolute paths, and Python looks for no module there either.
    """
    return shlex.join(["sh", "-c", _FIND_PASTED, _APP, line])


def here(project: Path) -> Run:
    """Return what stands for `anywhere` in a ProxyCommand that this machine alone runs, from any folder."""
    words = [str(project / ".venv/bin/python"), "-I", str(project / "operations")]
    return lambda line: f"{shlex.join(words).replace('%', '%%')} {line}"


def remember(code: Path, name: str = CODE) -> None:
    """Note where the code of this process lies, for the commands of its resources and for those of people.

    Without a folder to write in nothing is noted: the other places remain.

    Args:
        code: The folder with `operations/` and its environment.
        name: The name of the link: CODE, or CHECKOUT.
    """
    with contextlib.suppress(OSError, UserError):
        link = locations.state_root() / name
        if link.is_symlink() and link.readlink() == code:
            return
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = link.with_name(f".{name}.{secrets.token_hex(8)}")
        draft.symlink_to(code)
        os.replace(draft, link)  # noqa: PTH105 (a link is replaced, not followed)
