"""docs/troubleshooting.md: its symptoms are words of what the program prints, and nothing is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from botocore.exceptions import NoCredentialsError

from node.bootstrap.steps import STEPS
from node.elastic.drivers.ec2.errors import classify
from node.elastic.failures import POLICIES
from node.slurm.reasons import EXPLANATIONS
from tests.support.checkout import ROOT, sources

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MOST_WORDS = 6
"""So many words find a message, and leave the rest of the sentence free."""
# Messages of other programs: the kernel's, Slurm's, botocore's, the shell's (`node.logs.sources` has their
# patterns).
FOREIGN = {
    "Killed",
    "OUT_OF_MEMORY",
    "Slurm accounting storage is disabled",
    "Immediate execution impossible",
    # of the providers for AWS and Google Cloud
    "IncorrectInstanceState",
    "Error deleting instance",
}
FOREIGN |= {"source: not found", "conda: not found", NoCredentialsError.fmt}
# TensorFlow's, of which `node.logs.sources` has the patterns.
FOREIGN |= {"Could not start gRPC server", "PerReplica"}
HOLE = "…"


def symptoms(text: str = TEXT) -> list[str]:
    """Return what the page quotes in the first column of its tables of messages."""
    tables = re.findall(r"^\| you see \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()]
    return [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]


def literals(path: Path) -> list[str]:
    """Return a file's strings, without docstrings, as they would be printed: a placeholder for each value."""
    if path.suffix != ".py":
        return [path.read_text(encoding="utf-8")]
    found: list[str] = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.append("".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values))
    return found


@cache
def printed() -> str:
    """Return all of the program's strings, one a line."""
    files = [*sources(), *(ROOT / "workload").rglob("*.j2"), ROOT / "cluster"]
    return "\n".join(" ".join(text.split()) for file in files for text in literals(file))


@pytest.mark.parametrize("symptom", symptoms())
def test_a_symptom_is_some_words_of_a_message(symptom: str) -> None:
    assert len(symptom.split()) <= MOST_WORDS
    assert symptom in FOREIGN or symptom.rstrip(HOLE) in printed()


def test_a_stale_symptom_would_be_found() -> None:
    assert len(symptoms()) > 50
    page = "| you see | why |\n|---|---|\n| `a … b`, `c` | `d` |\n\n| `e` | f |\n"
    assert symptoms(page) == ["a … b", "c"]
    assert "boot failed at stage" not in printed()
    assert "as they would be printed" not in printed(), "a docstring is no message"
    assert "boot failed at step" in printed()


@pytest.mark.parametrize("code", re.findall(r"`((?:\w+\.)*[A-Z]\w+(?:Capacity|Exceeded|NotFound))`", TEXT))
def test_ec2s_words_have_the_cause_in_whose_row_they_are(code: str) -> None:
    (row,) = [line for line in TEXT.splitlines() if f"`{code}`" in line]
    assert row.startswith(f"| `{classify(code, 400)}:` |")


def test_every_cause_of_a_wait_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+):` \|", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(POLICIES)
    assert [word for word in EXPLANATIONS if f"`{word}`" not in TEXT] == []


def test_every_step_of_a_boot_is_explained() -> None:
    rows = re.findall(r"^\| (\w+) \|", TEXT, re.MULTILINE)
    # The page need not explain this step, which cannot fail.
    lacking = [step.name for step in STEPS if step.name not in rows]
    assert lacking == ["hosts"], 'a step needs a row in "up fails", with what to do when it fails'


def test_the_contents_lead_to_all_sections() -> None:
    assert TEXT.count("](#") == len(re.findall(r"^## ", TEXT, re.MULTILINE))
