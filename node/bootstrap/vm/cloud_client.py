"""Installs the cloud's client library for the elastic driver, if the distribution has no package of it."""

from __future__ import annotations

from node.bootstrap.context import Context
from node.elastic.programs import CLIENT
from node.system import files

LOCKED = "client/requirements.txt"
"""The file in the node archive with versions and hashes of packages, if the cloud's driver needs any."""
PYTHON = "/usr/bin/python3"


def install(context: Context) -> list[str]:
    """Install the library in a virtual environment, in which the elastic daemon runs.

    Returns:
        The packages that were installed now.

    Raises:
        CommandError: Pip failed. The error has its last lines.
    """
    locked = context.path(context.folders.code) / LOCKED
    if not locked.exists():
        return []
    environment = context.at(CLIENT)
    mark = environment / locked.name
    if mark.exists() and mark.read_bytes() == locked.read_bytes():
        return []
    context.run(PYTHON, "-m", "venv", "--clear", str(environment), timeout=120.0)
    pip = (str(environment / "bin" / "pip"), "install", "--quiet", "--no-cache-dir", "--only-binary=:all:")
    line = ("--require-hashes", "--requirement", str(locked))
    context.run(*pip, *line, timeout=300.0, attempts=3)
    # The mark is written last, so that the installation is repeated after an interruption.
    files.write(mark, locked.read_bytes())
    return [locked.read_text().partition(" ")[0]]
