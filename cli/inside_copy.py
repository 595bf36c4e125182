"""Copies files to and from a login machine on this host that has a root folder of its own.

Users of that machine choose where its links lead. Followed from here, a link to /etc would lead to this
host's. So `cp` runs on the machine, where links lead to the machine's own files, and reaches the files here
by open folders that it is given.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from infra.errors import UserError
from operations.access import Inside

_COPY = ("cp", "-R", "--remove-destination", "--")
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


def send(machine: Inside, sources: Sequence[str], goal: str) -> None:
    """Copy to the machine.

    Args:
        sources: Existing paths here.
        goal: The path on the machine.

    Raises:
        UserError: Something was not copied; the message names it.
    """
    several = goal.endswith("/") or len(sources) > 1
    if several and _run(machine, ["test", "-d", goal]).returncode:
        raise UserError(f":{goal}: there is no such folder on the login machine")
    with _Folders() as here:
        _copy(machine, [here.word(Path(source)) for source in sources], goal, here)


def fetch(machine: Inside, sources: Sequence[str], goal: str) -> None:
    """Copy from the machine.

    Args:
        sources: Paths or patterns on the machine.
        goal: The path here.

    Raises:
        UserError: Something was not copied; the message names it.
    """
    found = _run(machine, ["sh", "-c", _MATCH, "sh", *sources])
    if found.returncode == _MISSING:
        raise UserError(f":{os.fsdecode(found.stderr)}: there is no such file on the login machine")
    if found.returncode:
        raise UserError(_error_text(found, "cp"))
    matches = [os.fsdecode(path) for path in found.stdout.split(b"\0") if path]
    is_folder = Path(goal).is_dir()
    if (goal.endswith("/") or len(matches) > 1) and not is_folder:
        raise UserError(f"{goal}: there is no such folder here")
    with _Folders() as here:
        _copy(machine, matches, here.word(Path(goal), inside=is_folder), here)


class _Folders(contextlib.ExitStack):
    """Folders of this machine, held open for a command on the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, Path] = {}

    def word(self, path: Path, *, inside: bool = False) -> str:
        """A word by which a command that inherits the open folders reaches a path.

        Args:
            inside: Whether the path is a folder that is meant itself, even if a link leads to it.
        """
        itself = inside or path.name in ("", "..")
        folder = path if itself else path.parent
        try:
            handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}") from None
        self.callback(os.close, handle)
        self.open[handle] = folder
        return f"/proc/self/fd/{handle}/{'.' if itself else path.name}"


def _copy(machine: Inside, sources: Sequence[str], goal: str, here: _Folders) -> None:
    done = _run(machine, [*_COPY, *sources, goal], here)
    if done.returncode:
        raise UserError(_error_text(done, "cp", here))


def _run(
    machine: Inside, words: Sequence[str], here: _Folders | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*machine.enter, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        pass_fds=tuple(here.open) if here is not None else (),
    )


def _error_text(done: subprocess.CompletedProcess[bytes], name: str, here: _Folders | None = None) -> str:
    text = os.fsdecode(done.stderr).strip()
    for handle, folder in here.open.items() if here is not None else ():
        text = text.replace(f"/proc/self/fd/{handle}/", f"{folder}/")
    return text or f"{name} ended with status {done.returncode}"
