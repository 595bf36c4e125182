"""Files and folders of a machine with the owner and mode that their readers insist on."""

from __future__ import annotations

import os
from pathlib import Path

from infra.node.bootstrap import accounts

BEGIN, END = "# slurm-stacks: begin", "# slurm-stacks: end"
"""Around what is ours in a file of the machine's."""


def folder(path: Path, mode: int = 0o755, user: str | None = None) -> Path:
    """Have a folder with this mode, whatever the umask; `user` owns it, if one is given."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if user is not None:
        accounts.own(path, user)
    return path


def place(path: Path, content: bytes, mode: int = 0o644, user: str | None = None) -> bool:
    """Have a file with this content, mode and owner, whole or not at all. Returns whether it was written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    written = not path.is_file() or path.read_bytes() != content
    if written:
        draft.unlink(missing_ok=True)
        # From its first moment nobody reads it who may not.
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
    target = draft if written else path
    target.chmod(mode)
    if user is not None:
        accounts.own(target, user)
    if written:
        draft.replace(path)
    return written


def with_part(text: str, part: str) -> str:
    """A file's text with lines of ours, in place of those that it has; at its end where it has none."""
    head, _, rest = text.partition(BEGIN)
    rest = rest.partition(f"{END}\n")[2]
    return f"{head.rstrip()}\n{BEGIN}\n{part}{END}\n{rest}".lstrip("\n")


def link(path: Path, target: str) -> bool:
    """Have a symbolic link, in place of whatever file or link is there. Returns whether it was made."""
    if path.is_symlink() and str(path.readlink()) == target:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(path)
    return True
