"""The stack files as they are shipped, whatever a user of this checkout has made of them.

README invites to edit them, and a stack file of the user's own lies beside them. So tests that compare with a
shipped file take it from git's index, which also has what a contributor is about to commit.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from tests.support.checkout import ROOT


@cache
def stack_files() -> dict[str, str]:
    """Return the text of each shipped stack file by its name; without git, of those that lie here."""
    names = _git("ls-files", "--", "Pulumi.*.yaml")
    if names is None:
        return {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("Pulumi.*.yaml")}
    return {name: _git("show", f":{name}") or "" for name in names.split()}


def files(beginning: str = "Pulumi.") -> list[Path]:
    """Return the paths here of the shipped stack files whose names begin so; not of the user's own."""
    found = (ROOT / name for name in sorted(stack_files()) if name.startswith(beginning))
    return [path for path in found if path.exists()]


def stacks() -> list[str]:
    """Return the names of the shipped stacks."""
    return sorted(name.split(".")[1] for name in stack_files())


def _git(*words: str) -> str | None:
    """Return what git says of this checkout; `None` if it is none of git's, or there is no git."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
