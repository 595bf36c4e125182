"""Adds packages to the running environment that only some commands need, such as a cloud's client library."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path

from infra.errors import UserError
from infra.os_errors import AGAIN
from operations import programs

CHECKOUT = Path(__file__).resolve().parents[1]


@functools.cache
def provide(group: str) -> None:
    """Install a dependency group of pyproject.toml, unless its packages are there as uv.lock has them.

    Another environment than the checkout's own stays as it is: whoever made it decides what is in it.

    Args:
        group: The group's name.

    Raises:
        UserError: Uv failed, and its output is on standard error.
    """
    venv = CHECKOUT / ".venv"
    if Path(sys.prefix).resolve() != venv.resolve():
        return
    sync = [
        str(Path(sys.executable).with_name("uv")), "sync", "--quiet", "--frozen", "--inexact",
        "--no-default-groups", "--no-python-downloads", "--group", group, "--project", str(CHECKOUT),
    ]  # fmt: skip
    # Without the cache, this also works for a user without a home folder.
    for options in (["--check"], ["--check", "--no-cache"]):
        if not programs.capture([*sync, *options]).failed:
            return
    print(f"Adding packages to the Python environment in .venv: {group}.", file=sys.stderr, flush=True)
    if programs.show([*sync, "--compile-bytecode"], into=sys.stderr).failed:
        raise UserError(
            f"uv could not add the packages of group {group} of uv.lock into {venv} (see above). Check "
            f"the connection to the package index, the space there and that all of it is yours, {AGAIN}.",
            code="packages.uv",
        )
    importlib.invalidate_caches()
