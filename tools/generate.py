"""Every file that is made from the code, by one command: `uv run python -m tools.generate`.

First schemas and tables (`FILES`), then what tests write (`SNAPSHOTS`): the sentences of mistakes,
docs/reference/mistakes.md, and the keys that later releases must read. Look at the difference in git: it is
what users notice.

`--check` writes nothing. It names the files of the first part that are not up to date; the tests do so for
all. Left out is what needs a network, a machine of each release of Slurm, or a decision, such as the names of
resources: CONTRIBUTING.md lists it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from component import schema as component
from infra.config import foreign_keys
from infra.config import schema as stack_file
from infra.outputs import fields as outputs
from tools import changes_page

ROOT = Path(__file__).parents[1]
FILES: Mapping[str, Callable[[str], str]] = {
    "infra/schema/stack.json": lambda _old: stack_file.text(),
    "infra/schema/outputs.json": lambda _old: outputs.schema_text(),
    "component/schema.json": lambda _old: component.text(),
    "docs/reference/changes.md": changes_page.page,
    "docs/reference/outputs.md": outputs.page,
    "docs/reference/words.md": foreign_keys.page,
}
"""File -> its new text, from the old one."""
PROPERTIES = "tests/infra/config/test_config_property.py"
"""Tests of random stack files, which write nothing."""
SNAPSHOTS = ("tests/infra/config", "tests/infra/test_kept_word.py")
"""The tests that write files when they are run with `--update-snapshots`."""


def outdated(root: Path = ROOT) -> dict[str, str]:
    """Return the new text of each of `FILES` that is not up to date."""
    texts = {}
    for name, new in FILES.items():
        old = (root / name).read_text(encoding="utf-8")
        if (text := new(old)) != old:
            texts[name] = text
    return texts


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is outdated")
    check = parser.parse_args(arguments).check
    for name, text in (stale := outdated()).items():
        print(f"not up to date: {name}" if check else f"written: {name}")
        if not check:
            (ROOT / name).write_text(text, encoding="utf-8")
    if check:
        return 1 if stale else 0
    pytest = [sys.executable, "-m", "pytest", "-q", "-n0", "--update-snapshots", "--ignore", PROPERTIES]
    return subprocess.run([*pytest, *SNAPSHOTS], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
