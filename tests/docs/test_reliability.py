"""docs/reliability.md promises nothing without a test: every proof that it names is there."""

from __future__ import annotations

import re

import pytest

from infra.node.elastic.errors import ErrorClass
from tests.support.checkout import ROOT

TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
PROOFS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("file", "name"), PROOFS, ids=lambda value: value)
def test_a_proof_is_there(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_fault_has_its_proof() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and "---" not in line]
    faults = [row for row in rows if "| proof |" not in row]
    assert len(faults) > 20
    assert [row for row in faults if not re.search(r"`tests/|the same", row)] == []


@pytest.mark.parametrize("kind", ErrorClass)
def test_every_class_of_errors_is_explained(kind: ErrorClass) -> None:
    assert f"`{kind}: " in TEXT
