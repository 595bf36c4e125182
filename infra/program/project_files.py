"""Reads the files that a stack file names by their paths: the one way of the checks and of what is published.

A stack's folder may be somebody else's, and what is read goes to machines that all users of a cluster can
read. So no path leaves the project: not by its words, and not by a link, in whichever folder on the way, nor
by one that is put there between the check and the reading. Each folder is opened in the one before, without
following links; a link's words are then walked in the same way.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

MOST_LINKS = 40
"""The most links on the way to a file, as the kernel has it."""
MIB = 1 << 20
MOST_BYTES = 512 * MIB
"""The most bytes of a file, which is read at once. A Debian package is the largest that anybody names."""
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Wrong(Enum):
    """Why a path leads to no file of the project."""

    OUTSIDE = "outside"
    MISSING = "missing"
    FOLDER = "folder"
    KIND = "kind"
    LARGE = "large"
    UNREADABLE = "unreadable"


class ProjectFileError(Exception):
    """A path leads to no file of the project that can be read; the text says why, with `it` for the path."""

    def __init__(self, wrong: Wrong, why: str) -> None:
        super().__init__(why)
        self.wrong = wrong


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A file's content, and whether its owner may execute it."""

    content: bytes
    executable: bool


def read(project: Path, name: str, most: int = MOST_BYTES) -> ProjectFile:
    """Return a file of the project.

    Args:
        project: The folder in which the stack file is.
        name: The file's path, relative to it.
        most: The most bytes that it may have.

    Raises:
        ProjectFileError: There is no such file, or it cannot be read.
    """
    with _opened(project, name) as (handle, facts):
        if stat.S_ISDIR(facts.st_mode):
            raise ProjectFileError(Wrong.FOLDER, "it is a folder")
        # The size of some files, such as those of /proc, is not known before they are read.
        content = _content(handle, most) if facts.st_size <= most else None
        if content is None:
            raise ProjectFileError(Wrong.LARGE, f"it has more than {most // MIB or 1} MiB")
        return ProjectFile(content, bool(facts.st_mode & stat.S_IXUSR))


def is_folder(project: Path, name: str) -> bool:
    """Return whether a path leads to a folder of the project, and not to a file.

    Raises:
        ProjectFileError: It leads to neither.
    """
    with _opened(project, name) as (_, facts):
        return stat.S_ISDIR(facts.st_mode)


def _content(handle: int, most: int) -> bytes | None:
    """Return a file's content; `None` if it has more bytes."""
    with os.fdopen(os.dup(handle), "rb") as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise _error(error) from None
    return content if len(content) <= most else None


@contextmanager
def _opened(project: Path, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file or folder of the project, and yield it with its facts.

    Raises:
        ProjectFileError: There is none, or it cannot be opened.
    """
    with ExitStack() as stack:
        try:
            handle = _Walk(project, stack).to(name)
            facts = os.fstat(handle)
        except OSError as error:
            raise _error(error) from None
        except ValueError:  # a NUL, or half a character
            raise ProjectFileError(Wrong.MISSING, "no file can have such a name") from None
        yield handle, facts


class _Walk:
    """A way from the project's folder to a file, by open folders."""

    def __init__(self, project: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._roots = [PurePosixPath(project.resolve()), PurePosixPath(project.absolute())]
        self._folders = [self._kept(os.open(self._roots[0], _FOLDER))]
        """The project's folder, and those on the way from it to where the walk is."""

    def _kept(self, handle: int) -> int:
        self._stack.callback(os.close, handle)
        return handle

    def to(self, name: str) -> int:
        """Walk to a path, and return the open file or folder."""
        if name.startswith("/"):
            raise ProjectFileError(Wrong.OUTSIDE, "it does not begin in the project")
        if ".." in name.split("/"):
            raise ProjectFileError(Wrong.OUTSIDE, "it has '..', which may lead out of the project")
        words = deque(_words(name))
        links = 0
        while words:
            word = words.popleft()
            if word == "..":
                if len(self._folders) == 1:
                    raise _leaves()
                self._folders.pop()
                continue
            kind = os.stat(word, dir_fd=self._folders[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(kind):
                if (links := links + 1) > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                words.extendleft(reversed(self._target(os.readlink(word, dir_fd=self._folders[-1]))))
            elif stat.S_ISDIR(kind):
                self._folders.append(self._kept(os.open(word, _FOLDER, dir_fd=self._folders[-1])))
            elif words:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            else:
                return self._file(word)
        if len(self._folders) == 1:
            raise ProjectFileError(Wrong.OUTSIDE, "it is the project's folder itself")
        return self._folders[-1]

    def _file(self, word: str) -> int:
        """Open a regular file. To open a device or a pipe could do something, or wait for ever."""
        before = os.stat(word, dir_fd=self._folders[-1], follow_symlinks=False)
        if stat.S_ISREG(before.st_mode):
            handle = self._kept(os.open(word, _FILE, dir_fd=self._folders[-1]))
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return handle
        raise ProjectFileError(Wrong.KIND, "it is a device, a pipe or a socket")

    def _target(self, link: str) -> list[str]:
        """Return the words of a link's target. After an absolute one the walk is in the project's folder."""
        if not link.startswith("/"):
            return _words(link)
        target = PurePosixPath(link)
        inside = [root for root in self._roots if target.is_relative_to(root)]
        if ".." in target.parts or not inside:
            raise _leaves()
        del self._folders[1:]
        return list(target.relative_to(inside[0]).parts)


def _words(path: str) -> list[str]:
    return [word for word in path.split("/") if word not in ("", ".")]


def _leaves() -> ProjectFileError:
    return ProjectFileError(Wrong.OUTSIDE, "a link on the way to it leads out of the project")


def _error(error: OSError) -> ProjectFileError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ProjectFileError(Wrong.MISSING, "there is no such file")
    if error.errno == errno.ELOOP:
        return ProjectFileError(Wrong.UNREADABLE, "it is a link that leads to itself")
    return ProjectFileError(Wrong.UNREADABLE, f"it cannot be read ({error.strerror})")
