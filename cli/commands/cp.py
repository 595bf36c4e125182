"""`./cluster cp` and `./cluster ssh-config`: files to and from the login machine, also with other tools."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.providers import provider
from cli.providers.interface import HasFilesHere
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from operations import host_keys, openssh, pages, programs
from operations.access import Inside

if TYPE_CHECKING:
    from operations.access import Files, StackUp


LOGIN = "login"
_REMOTE = re.compile(r"([^/:]*):(.*)", re.DOTALL)
_HOW = (
    "write the paths on the login machine with a colon before them, and the others without: "
    "`./cluster cp data/ :inputs`, `./cluster cp :results.csv .`"
)


def copy(up: StackUp, sources: Sequence[str], last: str) -> None:
    """Copy files or folders.

    Args:
        sources: What is copied.
        last: The destination.

    Raises:
        UserError: The directions are mixed (exit 2), or something was not copied (exit 1); the message names
            it.
    """
    remote = [_remote_path(path) for path in sources]
    goal = _remote_path(last)
    if goal is None and None not in remote:
        _fetch(up, [path for path in remote if path is not None], last)
    elif goal is not None and not any(path is not None for path in remote):
        _send(up, sources, goal)
    elif goal is not None:
        raise UserError(
            f"both ends are on the login machine: `{up.command('exec', '-- cp …')}` copies there",
            EXIT_USAGE,
            code="cp.both-remote",
        )
    else:
        raise UserError(
            f"cp goes one way, to the login machine or from it: {_HOW}", EXIT_USAGE, code="cp.directions"
        )


def stanza(up: StackUp) -> str:
    """Return a section of OpenSSH's configuration for the login machine; its host keys are kept in a file.

    Raises:
        UserError: Exit 3; the stack has no SSH server.
    """
    target = provider.machine(up, "ssh-config").ssh(up)
    known = host_keys.keep_host_keys(up.make_folder(), target.host_keys)
    return openssh.stanza(f"slurm-stacks-{up.stack.name}", target, known)


def _remote_path(path: str) -> str | None:
    """Return the path on the login machine in an argument, relative to the home folder; else `None`.

    Raises:
        UserError: The argument names another machine.
    """
    match = _REMOTE.fullmatch(path)
    if match is None:
        return None
    if match[1] not in ("", LOGIN):
        raise UserError(
            f"{path}: {match[1]} is no machine of the stack; write :PATH for the login machine, or ./{path} "
            "for a file here with a colon in its name",
            EXIT_USAGE,
            code="cp.machine",
        )
    # Users are accustomed to write `~` for the home folder.
    return re.sub(r"^~(/+|$)", "", match[2]) or "."


def _send(up: StackUp, sources: Sequence[str], goal: str) -> None:
    for path in sources:
        if not Path(path).exists():
            raise UserError(f"{path}: there is no such file here", code="cp.no-local-file")
    files = _files_here(up)
    if isinstance(files, Inside):
        send_inside(files, [str(Path(path)) for path in sources], goal)
        return
    if files is not None:
        _copy_here([str(Path(path)) for path in sources], str(files(goal)), goal, f":{goal}")
        _tell(files, goal)
        return
    # After a slash, scp takes a colon as part of the name.
    _scp(up, [str(Path(path).absolute()) for path in sources], f"{LOGIN}:{goal}")


def _tell(files: Files, goal: str) -> None:
    """Say where files are that were copied to a relative path, unless they are in the cluster's home folder.

    On machines that are processes, `~` is this user's own home folder, and relative paths begin elsewhere.
    """
    place = files(goal)
    with contextlib.suppress(UserError):
        if not goal.startswith("/") and files(str(place)) == place:
            print(f"copied to {place}", file=sys.stderr)


def _fetch(up: StackUp, sources: Sequence[str], last: str) -> None:
    parent = Path(last).absolute().parent
    if not parent.is_dir():
        raise UserError(f"{last}: there is no folder {parent} here", code="cp.no-local-folder")
    files = _files_here(up)
    if isinstance(files, Inside):
        fetch_inside(files, sources, last)
        return
    if files is not None:
        matching = [path for source in sources for path in _matching(files, source)]
        _copy_here(matching, last, last, last)
        return
    goal = f"{Path(last).absolute()}{'/' * last.endswith('/')}"
    _scp(up, [f"{LOGIN}:{path}" for path in sources], goal)


def _files_here(up: StackUp) -> Files | Inside | None:
    """Where the login machine's files are on this machine; `None` if they are elsewhere."""
    chosen = provider.of(up)
    return chosen.files_here(up) if isinstance(chosen, HasFilesHere) else None


def _matching(files: Files, source: str) -> list[str]:
    """Return the paths that match a pattern, with scp's rules: the name of an existing file is no pattern."""
    path = files(source)
    if path.exists() or path.is_symlink():
        return [str(path)]
    if matches := sorted(glob.glob(str(path))):  # noqa: PTH207 - the whole path is the pattern
        return matches
    raise UserError(f":{source}: there is no such file on the login machine", code="cp.no-remote-file")


def _copy_here(sources: Sequence[str], goal: str, given: str, shown: str) -> None:
    """Copy with `cp`, whose rules are the same as scp's.

    Args:
        goal: The path on this machine.
        given: The path as the user wrote it, without the colon.
        shown: The path as the user wrote it.
    """
    if (given.endswith("/") or len(sources) > 1) and not Path(goal).is_dir():
        where = "here" if shown == given else "on the login machine"
        code = "cp.no-local-folder" if where == "here" else "cp.no-remote-folder"
        raise UserError(f"{shown}: there is no such folder {where}", code=code)
    words = ["cp", "-R", "--", *sources, goal]
    done = programs.capture(words)
    if done.failed:
        raise UserError(done.err.strip() or f"cp ended with status {done.status}", code="cp.failed")


def _scp(up: StackUp, sources: Sequence[str], goal: str) -> None:
    target = provider.machine(up, "cp").ssh(up)
    known = host_keys.keep_host_keys(up.make_folder(), target.host_keys)
    words = [*openssh.scp_arguments(target, known), *sources, goal]
    # scp shows its progress on standard output if that is a terminal.
    done = programs.show(words, errors=False)
    if done.status == programs.CANNOT_RUN:
        raise UserError(
            "files go to the login machine by `scp`, which is not on PATH: install OpenSSH's client "
            f"({pages.OPENSSH})",
            EXIT_REFUSED,
            code="cp.no-scp",
        )
    if not done.failed:
        print(done.err, end="", file=sys.stderr)
        return
    if done.status == openssh.OWN_FAILURE or openssh.is_connection_failure(done.err):
        raise openssh.explain(target, done.err)
    raise UserError(done.err.strip() or f"scp ended with status {done.status}", code="cp.failed")


_COPY_LINES = ("cp", "-R", "--remove-destination", "--")
"""Copies with scp's rules. A link in a file's place is replaced: whoever made it does not choose what is
written."""
_MISSING = 81
# Prints what the patterns match, each followed by a NUL. As with scp, an existing file's name is no pattern.
_MATCH = """\
IFS=
for path; do
  there=
  if [ -e "$path" ] || [ -L "$path" ]; then printf '%s\\0' "$path"; continue; fi
  for match in $path; do
    if [ -e "$match" ] || [ -L "$match" ]; then there=1; printf '%s\\0' "$match"; fi
  done
  if [ -z "$there" ]; then printf '%s' "$path" >&2; exit 81; fi
done
"""


def send_inside(machine: Inside, sources: Sequence[str], goal: str) -> None:
    """Copy to the machine.

    Args:
        sources: Existing paths here.
        goal: The path on the machine.

    Raises:
        UserError: Something was not copied; the message names it.
    """
    several = goal.endswith("/") or len(sources) > 1
    if several and _run_inside(machine, ["test", "-d", goal]).failed:
        raise UserError(f":{goal}: there is no such folder on the login machine", code="cp.no-remote-folder")
    with _Folders() as folders:
        _copy(machine, [folders.word(Path(source)) for source in sources], goal, folders)


def fetch_inside(machine: Inside, sources: Sequence[str], goal: str) -> None:
    """Copy from the machine.

    Args:
        sources: Paths or patterns on the machine.
        goal: The path here.

    Raises:
        UserError: Something was not copied; the message names it.
    """
    listing = _run_inside(machine, ["sh", "-c", _MATCH, "sh", *sources])
    if listing.status == _MISSING:
        raise UserError(
            f":{listing.err}: there is no such file on the login machine", code="cp.no-remote-file"
        )
    if listing.failed:
        raise UserError(_error_text(listing, "cp"), code="cp.failed")
    matches = [path for path in listing.out.split("\0") if path]
    is_folder = Path(goal).is_dir()
    if (goal.endswith("/") or len(matches) > 1) and not is_folder:
        raise UserError(f"{goal}: there is no such folder here", code="cp.no-local-folder")
    with _Folders() as folders:
        _copy(machine, matches, folders.word(Path(goal), inside=is_folder), folders)


class _Folders(contextlib.ExitStack):
    """Folders of this machine, held open for a command on the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, Path] = {}

    def word(self, path: Path, *, inside: bool = False) -> str:
        """Return a word by which a command that inherits the open folders reaches a path.

        Args:
            inside: Whether the path is a folder that is meant itself, even if a link leads to it.
        """
        itself = inside or path.name in ("", "..")
        folder = path if itself else path.parent
        try:
            handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}", code="cp.local-folder") from None
        self.callback(os.close, handle)
        self.open[handle] = folder
        return f"/proc/self/fd/{handle}/{'.' if itself else path.name}"


def _copy(machine: Inside, sources: Sequence[str], goal: str, folders: _Folders) -> None:
    done = _run_inside(machine, [*_COPY_LINES, *sources, goal], folders)
    if done.failed:
        raise UserError(_error_text(done, "cp", folders), code="cp.failed")


def _run_inside(machine: Inside, words: Sequence[str], folders: _Folders | None = None) -> programs.Output:
    handles = folders.open if folders is not None else ()
    return programs.capture([*machine.enter, *words], errors="surrogateescape", handles=handles)


def _error_text(done: programs.Output, name: str, folders: _Folders | None = None) -> str:
    text = done.err.strip()
    for handle, folder in folders.open.items() if folders is not None else ():
        text = text.replace(f"/proc/self/fd/{handle}/", f"{folder}/")
    return text or f"{name} ended with status {done.status}"
