"""docs/reference/mistakes.md: the codes of a configuration's mistakes, each with an example from a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.sentences import HEAD as HEAD_OF_TEST

PAGE = ROOT / "docs" / "reference" / "mistakes.md"
SENTENCES = Path(__file__).with_name("sentences")
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")
HEAD = """\
# Mistakes in a stack file

A component's arguments are checked as a stack file is. Codes that begin with `component` are theirs alone.
Each message has a code in brackets, which stays the same when its sentence changes. This page lists all
codes, each with an example of what is allowed. The message has the value, and says what to do.
"""


def raised() -> set[str]:
    """Return the codes in the source: keywords, first arguments of these calls, and those of two tables."""
    folders = (ROOT / "infra" / "config", ROOT / "component")
    return {code for folder in folders for file in folder.rglob("*.py") for code in _codes(file)}


def _codes(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            candidates = [word.value for word in node.keywords if word.arg == "code"]
            candidates += node.args[:1] if name in ("add", "_add", "Mistake", "refusal") else []
        else:
            candidates = [node] if isinstance(node, ast.Constant) else []
        for found in candidates:
            text = getattr(found, "value", None)
            listed = isinstance(text, str) and re.fullmatch(r"(value|yaml)\.[a-z-]+", text)
            if isinstance(text, str) and text and (isinstance(node, ast.Call) or listed):
                yield text


def examples() -> dict[str, str]:
    """Return the first message of each code."""
    found: dict[str, str] = {}
    component = ROOT / "tests" / "component" / "sentences"
    files = [*sorted(SENTENCES.glob("config_*.txt")), *component.glob("component_*.txt")]
    texts = [file.read_text(encoding="utf-8").strip() for file in files]
    # Warnings, which have no codes, stand with the names of their tests.
    for text in (text for text in texts if not text.startswith(HEAD_OF_TEST)):
        for message in text.split("\n\n"):
            code = re.search(rf"\[({CODE.pattern})\]$", message, re.M)
            assert code is not None, message
            found.setdefault(code[1], message)
    return found


def rows() -> Iterator[str]:
    """Yield the page's table, a row for each code."""
    yield from ("| code | allowed |", "|---|---|")
    for code, message in sorted(examples().items()):
        allowed = re.search(r"^    allowed +(.*)$", message, re.M)
        whole = re.sub(r"^Pulumi\.\w+\.yaml[,:]? ", "", message.rpartition("[")[0])
        yield f"| `{code}` | {_cell(allowed[1] if allowed else ' '.join(whole.split()))} |"


def _cell(text: str) -> str:
    return re.sub(r"([|<*])", r"\\\1", text)


def test_every_code_has_an_example_that_a_test_causes() -> None:
    assert all(CODE.fullmatch(code) for code in raised())
    cure = (
        "a code without a row in tests/infra/config, or a row of none: mend it, then python -m tools.generate"
    )
    assert raised() == examples().keys(), cure


def test_the_page_lists_them(pytestconfig: pytest.Config) -> None:
    text = HEAD + "\n" + "\n".join(rows()) + "\n"
    if pytestconfig.getoption("--update-snapshots"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8"), "run tests/infra/config with --update-snapshots"
