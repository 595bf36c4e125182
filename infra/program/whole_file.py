"""Writes a file so that it is there whole or not at all, also in a folder where others can write."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a file by a draft beside it that nobody else can have made. A link at `path` is replaced.

    Args:
        mode: The file's mode, which the umask limits.

    Raises:
        OSError: The file cannot be written; no draft of it is left.
    """
    data = content.encode() if isinstance(content, str) else content
    # A name that others could foresee may be a link of theirs; O_EXCL follows none.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
