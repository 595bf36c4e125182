"""The page of Slurm's traps and the modules that have the workarounds name each other."""

from __future__ import annotations

import re

from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "internals" / "slurm_traps.md").read_text()
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def workarounds() -> dict[str, set[str]]:
    """Return trap -> the modules that the page says have its workaround."""
    return {
        name: set(re.findall(r"`(node/[\w/]+\.py)`", text.partition("**We:**")[2].partition("**Gone")[0]))
        for name, text in SECTIONS.items()
    }


def named() -> dict[str, set[str]]:
    """Return trap -> the modules whose docstrings name it."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "node").rglob("*.py")):
        for names in re.findall(r"slurm_traps\.md\):([^.]*)\.", file.read_text()):
            for name in re.findall(r"[\w-]+", names):
                found.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    return found


def test_each_workaround_names_its_trap_and_each_trap_its_workarounds() -> None:
    assert len(SECTIONS) > 20
    assert workarounds() == named()


def test_each_trap_says_which_releases_have_it_and_how_to_see_that_it_is_gone() -> None:
    for name, text in SECTIONS.items():
        assert "**Release:**" in text, name
        tests = re.findall(r"`(tests/[\w/]+\.py)`", text.partition("**Gone when:**")[2])
        assert tests, name
        assert all((ROOT / test).is_file() for test in tests), name
