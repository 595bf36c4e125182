"""`./cluster cp` and `./cluster ssh-config`: files to the login machine and back; the way for other tools."""

from __future__ import annotations

import contextlib
import glob
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra import pages, providers
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.runner import folders
from infra.ssh import hostkeys, openssh

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.provider import Files, StackUp

LOGIN = "login"
_THERE = re.compile(r"([^/:]*):(.*)", re.DOTALL)
_HOW = (
    "write the paths on the login machine with a colon before them, and the others without: "
    "`./cluster cp data/ :inputs`, `./cluster cp :results.csv .`"
)


def copy(project: Path, config: StackConfig | StackUp, sources: Sequence[str], last: str) -> None:
    """Copy files or folders.

    Args:
        last: where they go.

    Raises:
        UserError: exit 2: not one way; exit 1: something was not copied, and the message names it.
    """
    there = [_there(path) for path in sources]
    goal = _there(last)
    if goal is None and None not in there:
        _fetch(project, config, [path for path in there if path is not None], last)
    elif goal is not None and not any(path is not None for path in there):
        _send(project, config, sources, goal)
    elif goal is not None:
        raise UserError(
            "both ends are on the login machine: `./cluster exec --stack "
            f"{config.stack} -- cp …` copies there",
            EXIT_USAGE,
        )
    else:
        raise UserError(f"cp goes one way, to the login machine or from it: {_HOW}", EXIT_USAGE)


def stanza(project: Path, config: StackConfig | StackUp) -> str:
    """A section of OpenSSH's configuration for the stack's login machine; its host keys are kept beside it.

    Raises:
        UserError: exit 3; the stack has no SSH server.
    """
    target = providers.load(config.provider).ssh(project, config.stack)
    known = hostkeys.keep(folders.make_state_dir(project, config.stack), target.host_keys)
    return openssh.stanza(f"slurm-stacks-{config.stack}", target, known)


def _there(path: str) -> str | None:
    """A path on the login machine without its mark, below the home folder if it is relative; None: one here.

    Raises:
        UserError: it names another machine.
    """
    match = _THERE.fullmatch(path)
    if match is None:
        return None
    if match[1] not in ("", LOGIN):
        raise UserError(
            f"{path}: {match[1]} is no machine of the stack; write :PATH for the login machine, or ./{path} "
            "for a file here with a colon in its name",
            EXIT_USAGE,
        )
    # What people are used to write for the home folder.
    return re.sub(r"^~(/+|$)", "", match[2]) or "."


def _send(project: Path, config: StackConfig | StackUp, sources: Sequence[str], goal: str) -> None:
    for path in sources:
        if not Path(path).exists():
            raise UserError(f"{path}: there is no such file here")
    chosen = providers.load(config.provider)
    files = chosen.files_here(project, config.stack)
    if files is not None:
        _copy_here([str(Path(path)) for path in sources], str(files(goal)), slash=goal.endswith("/"))
        _tell(files, goal)
        return
    # A colon after a slash marks nothing.
    _scp(project, config, [str(Path(path).absolute()) for path in sources], f"{LOGIN}:{goal}")


def _tell(files: Files, goal: str) -> None:
    """Say where files are that were copied to a relative path, unless it is below a home folder of theirs.

    On machines that are processes `~` is this user's own home folder, where relative paths do not begin.
    """
    place = files(goal)
    with contextlib.suppress(UserError):
        if not goal.startswith("/") and files(str(place)) == place:
            print(f"copied to {place}", file=sys.stderr)


def _fetch(project: Path, config: StackConfig | StackUp, sources: Sequence[str], last: str) -> None:
    parent = Path(last).absolute().parent
    if not parent.is_dir():
        raise UserError(f"{last}: there is no folder {parent} here")
    files = providers.load(config.provider).files_here(project, config.stack)
    if files is not None:
        found = [path for source in sources for path in _matching(files, source)]
        _copy_here(found, last, slash=last.endswith("/"))
        return
    goal = f"{Path(last).absolute()}{'/' * last.endswith('/')}"
    _scp(project, config, [f"{LOGIN}:{path}" for path in sources], goal)


def _matching(files: Files, source: str) -> list[str]:
    """The paths that a pattern means, as scp has it; a path that is there is no pattern."""
    path = files(source)
    if path.exists() or path.is_symlink():
        return [str(path)]
    if found := sorted(glob.glob(str(path))):  # noqa: PTH207 - the whole path is the pattern
        return found
    raise UserError(f":{source}: there is no such file on the login machine")


def _copy_here(sources: Sequence[str], goal: str, *, slash: bool) -> None:
    """By `cp`, whose rules are scp's."""
    if (slash or len(sources) > 1) and not Path(goal).is_dir():
        raise UserError(f"{goal}: there is no such folder")
    words = ["cp", "-R", "--", *sources, goal]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip() or f"cp ended with status {done.returncode}")


def _scp(project: Path, config: StackConfig | StackUp, sources: Sequence[str], goal: str) -> None:
    target = providers.load(config.provider).ssh(project, config.stack)
    known = hostkeys.keep(folders.make_state_dir(project, config.stack), target.host_keys)
    words = [*openssh.copying(target, known), *sources, goal]
    try:
        # Its progress goes to standard output, where that is a terminal.
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise UserError(
            "files go to the login machine by `scp`, which is not on PATH: install OpenSSH's client "
            f"({pages.OPENSSH})",
            EXIT_REFUSED,
        ) from None
    if done.returncode == 0:
        print(done.stderr, end="", file=sys.stderr)
        return
    if done.returncode == openssh.OWN_FAILURE or openssh.is_own(done.stderr):
        raise openssh.explained(target, done.stderr)
    raise UserError(done.stderr.strip() or f"scp ended with status {done.returncode}")
