"""Files that are written whole or not at all: the one way of the program and of the commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file in the system's errors of the body that name none: a write to a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def write_atomically(
    path: Path, content: str | bytes, mode: int = 0o666, *, exclusive: bool = False, durable: bool = False
) -> None:
    """Write a file so that it is there whole or not at all, also in a folder where others can write.

    The file is a draft beside its place first, which nobody else can have made. A link at `path` is replaced.

    Args:
        mode: The file's mode, which the umask limits.
        exclusive: Whether a file at `path` is an error instead of being replaced.
        durable: Whether the content is on the disk before this returns, so that it survives a power cut.

    Raises:
        FileExistsError: There is a file, and `exclusive` is given.
        OSError: The file cannot be written; no draft of it is left.
    """
    data = content.encode() if isinstance(content, str) else content
    # A name that others could foresee may be a link of theirs; O_EXCL follows none.
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with named(path), os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if exclusive:
            # A link appears at once and whole. If two start at the same moment, one of them fails.
            os.link(draft, path)
            draft.unlink()
        else:
            draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
