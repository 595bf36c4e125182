"""Writes files, folders and links of a machine, with the owner and the mode that their readers require."""

from __future__ import annotations

import os
from pathlib import Path

from node.bootstrap import accounts

BEGIN, END = "# slurm-stacks: begin", "# slurm-stacks: end"
"""The lines before and after our part of a file of the distribution."""


def folder(path: Path, mode: int = 0o755, user: str | None = None) -> Path:
    """Makes a folder with this mode, whatever the umask is. `user` becomes its owner, if given."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if user is not None:
        accounts.chown(path, user)
    return path


def write(path: Path, content: bytes, mode: int = 0o644, user: str | None = None) -> bool:
    """Writes a file atomically, with this mode and owner. Returns whether the content was written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    written = not path.is_file() or path.read_bytes() != content
    if written:
        draft.unlink(missing_ok=True)
        # The draft is private from its first moment.
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
    target = draft if written else path
    target.chmod(mode)
    if user is not None:
        accounts.chown(target, user)
    if written:
        draft.replace(path)
    return written


def with_part(text: str, part: str) -> str:
    """Returns a file's text with our part: it replaces the former part, or is added at the end."""
    head, _, rest = text.partition(BEGIN)
    rest = rest.partition(f"{END}\n")[2]
    return f"{head.rstrip()}\n{BEGIN}\n{part}{END}\n{rest}".lstrip("\n")


def link(path: Path, target: str) -> bool:
    """Makes a symbolic link, which replaces a file or link. Returns whether it was made."""
    if path.is_symlink() and str(path.readlink()) == target:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(path)
    return True
