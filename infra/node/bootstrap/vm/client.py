"""The library with which the elastic driver asks its cloud, where the distribution has none."""

from __future__ import annotations

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context
from infra.node.elastic.programs import CLIENT

LOCKED = "client/requirements.txt"
"""In the node archive: each package with its version and hashes, where the cloud's driver needs any."""
PYTHON = "/usr/bin/python3"


def install(context: Context) -> list[str]:
    """Have it in a virtual environment of its own, which the daemon runs with. Returns what was installed.

    Raises:
        CommandError: pip could not; its last lines are with it.
    """
    locked = context.path(context.folders.code) / LOCKED
    if not locked.exists():
        return []
    place = context.at(CLIENT)
    mark = place / locked.name
    if mark.exists() and mark.read_bytes() == locked.read_bytes():
        return []
    context.run(PYTHON, "-m", "venv", "--clear", str(place), timeout=120.0)
    pip = (str(place / "bin" / "pip"), "install", "--quiet", "--no-cache-dir", "--only-binary=:all:")
    line = ("--require-hashes", "--requirement", str(locked))
    context.run(*pip, *line, timeout=300.0, attempts=3)
    # Last: a restart in between begins anew.
    files.place(mark, locked.read_bytes())
    return [locked.read_text().partition(" ")[0]]
