"""The files of a run: replaced in one step, and JSON read with care. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

DEEPEST = 20
"""The most levels of JSON that are read. A record has three."""


_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"


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


def parse_json(text: str | bytes) -> Any:
    """Read JSON that anybody may have written.

    Raises:
        ValueError: It is no JSON, or has more than DEEPEST levels.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically, because other tasks may read the file meanwhile."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with replacing(path) as file:
        file.write(f"{text}\n".encode())
