"""Replaces files in one step. Standard library only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a draft to write, which takes the place of a file when the body ends without an error.

    Other tasks, on any node, read either the old content or the new one, also after a power failure. The
    draft's name begins with a dot and the file's name, so a later start can remove one that a killed task has
    left. A library that wants a path writes to `file.name`.

    Args:
        path: The file. Its folder is made if it is missing.

    Raises:
        OSError: The file cannot be written, for example on a full disk. The old one is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        os.close(descriptor)
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o644)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
