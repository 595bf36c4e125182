"""docs/reliability.md promises nothing without a test: its tests exist, and one of each always runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from node.elastic.driver import ErrorClass
from tests.support.checkout import ROOT

TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
PROOF = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PROOFS = sorted(set(PROOF.findall(TEXT)))
FAULTS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("|") and "---" not in line and "| proof |" not in line
]
REAL = "tests/cluster/"
"""Where the tests of a whole cluster are, with the real Slurm."""


@pytest.fixture(scope="module")
def narrow() -> set[tuple[str, str]]:
    """Return file and name of each test that `./cluster test` runs without `--all`, in the named files."""
    collected = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-m",
            "not wide",
            *{file for file, _ in PROOFS},
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    return set(re.findall(r"^(tests/[\w/]+\.py)::(\w+)", collected.stdout, re.MULTILINE))


def runs(narrow: set[tuple[str, str]], file: str, name: str) -> bool:
    """Return whether a test, or at least one test of a file, runs by default."""
    return (file, name) in narrow if name else any(there == file for there, _ in narrow)


@pytest.mark.parametrize(("file", "name"), PROOFS, ids=lambda value: value)
def test_a_proof_is_there(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_fault_has_its_proof() -> None:
    assert len(FAULTS) > 20
    assert [row for row in FAULTS if not re.search(r"`tests/|the same", row)] == []


def test_every_promise_has_a_proof_that_runs_by_default(narrow: set[tuple[str, str]]) -> None:
    """If tests with a real cluster are among a promise's tests, at least one of these runs."""
    unproven = []
    for row in FAULTS:
        proofs = PROOF.findall(row)
        real = [proof for proof in proofs if proof[0].startswith(REAL)]
        if proofs and not any(runs(narrow, *proof) for proof in real or proofs):
            unproven.append(row)
    assert unproven == []


@pytest.mark.parametrize("kind", ErrorClass)
def test_every_class_of_errors_is_explained(kind: ErrorClass) -> None:
    assert f"`{kind}: " in TEXT
