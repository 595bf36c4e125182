"""docs/internals/reliability.md promises nothing without a test; one of each promise's always runs."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.elastic.failures import ErrorClass
from tests.support.checkout import ROOT

TEXT = (ROOT / "docs" / "internals" / "reliability.md").read_text(encoding="utf-8")
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
    """Return file and name of each test that `./cluster test` runs without `--all`, in the named files.

    The marks are read as pytest keeps them. Collecting these files takes a process and seconds.
    """
    return {(file, name) for file in {file for file, _ in PROOFS} for name in by_default(file)}


def by_default(file: str) -> Iterator[str]:
    """Yield the names of a file's functions and classes of which pytest runs at least one test by default."""
    try:
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    except pytest.skip.Exception:  # it needs what this machine lacks, such as an environment for training
        return
    if "wide" in {mark.name for mark in marks_of(module)}:
        return
    for name, value in vars(module).items():
        if not (name.startswith("test_") and inspect.isroutine(value)) and not name.startswith("Test"):
            continue
        marks = marks_of(value)
        lists = [mark.args[1] for mark in marks if mark.name == "parametrize"]
        if "wide" not in {mark.name for mark in marks} and all(map(has_narrow, lists)):
            yield name


def marks_of(value: Any) -> list[pytest.Mark]:
    """Return the marks of a module, a class or a function, of which a module has decorators."""
    found = getattr(value, "pytestmark", [])
    marks = found if isinstance(found, list) else [found]
    return [mark.mark if isinstance(mark, pytest.MarkDecorator) else mark for mark in marks]


def has_narrow(parameters: Any) -> bool:
    """Return whether one of a test's parameters has no mark `wide`."""
    return any(
        "wide" not in {mark.name for mark in getattr(parameter, "marks", ())} for parameter in parameters
    )


def test_a_test_without_narrow_parameters_is_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        import pytest

        wide = pytest.mark.wide

        @wide
        def test_marked(): pass

        @pytest.mark.parametrize("n", [pytest.param(1, marks=wide), pytest.param(2, marks=wide)])
        def test_only_wide(n): pass

        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=wide)])
        def test_some(n): pass

        def test_plain(): pass

        def helper(): pass
    """
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_wide_tests.py").write_text(textwrap.dedent(text))
    (tmp_path / "all_wide_tests.py").write_text(
        "import pytest\npytestmark = [pytest.mark.wide]\ndef test_a(): pass"
    )
    assert list(by_default("some_wide_tests.py")) == ["test_some", "test_plain"]
    assert list(by_default("all_wide_tests.py")) == []


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
