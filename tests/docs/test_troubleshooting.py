"""docs/troubleshooting.md quotes the program's present messages, and no former ones."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from botocore.exceptions import NoCredentialsError

from node.bootstrap.steps import STEPS
from node.elastic.driver import POLICIES
from node.elastic.drivers.ec2.errors import classify
from node.slurm.reasons import EXPLANATIONS
from tests.support.checkout import ROOT, sources

PAGE = ROOT / "docs" / "troubleshooting.md"
TEXT = PAGE.read_text(encoding="utf-8")
# Messages of other programs: the kernel's, Slurm's, botocore's, the shell's (`node.logs.sources` has their
# patterns).
FOREIGN = {
    *("Killed", "OUT_OF_MEMORY", "Slurm accounting storage is disabled"),
    *("source: not found", "conda: not found"),
    "Immediate execution impossible, insufficient priority",
    NoCredentialsError.fmt,
}
EC2S = {"InvalidCapacityReservationId.NotFound"}
"""Error codes of EC2 that the program does not name, because a pattern classifies them."""
CAPACITY = ("InsufficientInstanceCapacity", "ReservationCapacityExceeded")
HOLE = "…"


def symptoms(text: str = TEXT) -> list[str]:
    """Return the messages that the page quotes in its headings."""
    headings = re.findall(r"^### (.*)$", text, re.M)
    return [quoted for heading in headings for quoted in re.findall(r"`([^`]+)`", heading)]


def literals(path: Path) -> list[str]:
    """Return a file's strings as they would be printed, with a placeholder for each value."""
    if path.suffix != ".py":
        return [path.read_text(encoding="utf-8")]
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.append("".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values))
    return found


@cache
def source() -> str:
    """Return all of the program's strings, one a line."""
    files = [*sources(), *(ROOT / "workload").rglob("*.j2"), ROOT / "cluster"]
    return "\n".join(" ".join(text.split()) for file in files for text in literals(file))


def said(symptom: str) -> bool:
    """Return whether one of the program's strings has the symptom's pieces in their order."""
    pieces = [re.escape(piece.strip()) for piece in symptom.split(HOLE) if piece.strip()]
    return re.search(".*?".join(pieces), source()) is not None


@pytest.mark.parametrize("symptom", symptoms())
def test_the_program_says_what_the_page_quotes(symptom: str) -> None:
    assert symptom in FOREIGN or symptom in EC2S or said(symptom)


@pytest.mark.parametrize(
    "heading", [line for line in TEXT.splitlines() if re.match(r"### `\w+:` with", line)]
)
def test_ec2s_words_have_the_cause_that_the_page_says(heading: str) -> None:
    cause, *codes = re.findall(r"`(\w+):?(?:\.\w+)?`", heading)
    assert codes
    for code in codes:
        (whole,) = [one for one in (*EC2S, *CAPACITY) if one.startswith(code)]
        assert classify(whole, 400) == cause


def test_a_stale_symptom_would_be_found() -> None:
    assert len(symptoms()) > 40
    assert symptoms("### `a … b`, `c`\ntext `d`\n#### `e`\n## `f`\n") == ["a … b", "c"]
    assert not said("the …'s boot failed at stage")
    assert not said("step … failed at boot 's the")
    assert said("the …'s boot failed at step … : …")


def test_every_cause_of_a_wait_is_explained() -> None:
    for kind, policy in POLICIES.items():
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{kind}:` |")]
        assert policy.advice in row, f"{kind}: the advice that the cause ends with"
    missing = [word for word in EXPLANATIONS if f"`{word}`" not in TEXT]
    assert missing == []


def test_every_step_of_a_boot_is_explained() -> None:
    rows = re.findall(r"^\| (\w+) \|", TEXT, re.M)
    # The page need not explain this step, which cannot fail.
    assert [step.name for step in STEPS if step.name not in rows] == ["hosts"]


def test_the_contents_lead_to_sections() -> None:
    anchors = re.findall(r"\]\(#([^)]+)\)", TEXT)
    titles = re.findall(r"^## (.*)$", TEXT, re.M)
    made = [re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles]
    assert anchors == made
