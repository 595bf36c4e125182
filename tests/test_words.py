"""Words: "1 node" and "2 nodes", but nowhere "1 nodes"; names that an engineer would search for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands.report import page, runs
from cli.console import plan, status, tables
from cli.results import Kept
from node.system.plurals import count
from tests.cli.test_console import RESULT, STATUS
from tests.support.checkout import ROOT, sources
from tests.support.report_records import local
from tests.support.sentences import HEAD

ODD_WORDS = {
    "entrance": "ssh_access",
    "fence": "isolate, drain",
    "fleet": "launch_template",
    "fleets": "launch_templates",
    "foundry": "image_build",
    "ground": "dependencies",
    "mend": "repair",
    "mine": "own, ours",
    "people": "users",
    "remains": "leftovers",
    "room": "capacity, space",
    "said": "configured, reported",
    "saves": "state_flush",
    "seats": "addresses",
    "station": "role_resources",
    "stray": "surplus_node",
    "strays": "surplus_nodes",
    "told": "reported, notified",
    "trouble": "error, failure",
    "upkeep": "lifecycle",
    "weigh": "check_changes",
    "welcome": "motd, handshake",
    "wish": "request",
}
"""A word that nobody searches for -> words of the field."""
RESOURCE_WORDS = {**ODD_WORDS, "end": "termination, cleanup", "seat": "address", "sweep": "termination"}
"""The same for the types and names of resources, where a sweep is no series of measurements."""
FIELD_FOLDERS = ("infra", "operations", "cli", "node", "localcloud")
"""The folders whose names must have none of these words."""

NOUNS = [
    "addresses",
    "CPUs",
    "devices",
    "disks",
    "epochs",
    "errors",
    "events",
    "files",
    "folders",
    "GPUs",
    "hours",
    "images",
    "jobs",
    "lines",
    "machines",
    "mistakes",
    "nodes",
    "partitions",
    "ports",
    "releases",
    "resources",
    "results",
    "runs",
    "stacks",
    "steps",
    "tasks",
    "times",
    "users",
    "workers",
]
COUNTED = re.compile(rf"(?: static)? (?:{'|'.join(NOUNS)})\b")
ONE = re.compile(rf"(?<![\w.,-])1 (?:static )?(?:{'|'.join(NOUNS)})\b")


def uncounted(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and expression of each number right before a plural noun that may be 1.

    A constant is not, nor a number that its function compares with another: one of it is another text, or no
    message. `plurals.count` has the noun in it.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, follows in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(follows, ast.Constant):
                number = ast.unparse(value.value)
                if not COUNTED.match(str(follows.value)) or not is_number(number) or number.isupper():
                    continue
                if number not in compared(tree, value.lineno):
                    yield value.lineno, number


def compared(tree: ast.Module, line: int) -> set[str]:
    """Return the expressions that the functions around a line compare."""
    return {
        ast.unparse(side)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.lineno <= line <= (function.end_lineno or line)
        for node in ast.walk(function)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
    }


def test_every_number_before_a_noun_may_be_one_or_never_is() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {number}"
        for file in sources()
        for line, number in uncounted(file.read_text(encoding="utf-8"))
    ]
    assert found == [], "say plurals.count(number, noun)"


def test_a_number_that_may_be_one_is_found() -> None:
    assert [*uncounted('def f(n):\n    return f"{n} nodes"')] == [(2, "n")]
    assert [*uncounted('def f(n):\n    return f"{n} nodes" if n > 1 else "one"')] == []
    assert [*uncounted("def f():\n    return f\"{MOST} nodes, {count(2, 'job')}\"")] == []


def names(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of the module, of its classes and of its functions."""
    yield 1, file.stem
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def test_modules_classes_and_functions_have_words_of_the_field() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}: say {ODD_WORDS[word]}"
        for file in sources()
        if file.relative_to(ROOT).parts[0] in FIELD_FOLDERS
        for line, name in names(file)
        for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        if word in ODD_WORDS
    ]
    assert found == []


def test_types_and_names_of_resources_have_words_of_the_field() -> None:
    listed = (ROOT / "tests/infra/contract/resource_names.txt").read_text().splitlines()
    found = [
        f"{line}: say {RESOURCE_WORDS[word]}"
        for line in listed
        for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", line).lower())
        if word in RESOURCE_WORDS
    ]
    assert listed
    assert found == []


def is_number(expression: str) -> bool:
    if ".join(" in expression:
        return False
    words = re.findall(r"[a-z_]+", expression.lower())
    return not words or words[-1] not in (
        "stack", "name", "node", "checkout", "kind", "config", "one", "path", "unit", "what", "item", "upper",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("node",), "0 nodes"),
        (1, ("node",), "1 node"),
        (2, ("node",), "2 nodes"),
        (1, ("address", "addresses"), "1 address"),
        (2, ("address", "addresses"), "2 addresses"),
    ],
)
def test_a_count(number: int, words: tuple[str, ...], text: str) -> None:
    assert count(number, *words) == text


def test_what_is_printed_of_one_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_result({**RESULT, "epochs": 1, "nodes": 1, "workers": 1})
    one = {"name": "debug-3", "partition": "debug", "state": "IDLE+CLOUD+POWERED_DOWN"}
    status.show_status({**STATUS, "nodes": [{**one, "machine_state": None, "reason": None}]})
    child: dict[str, Any] = {"urn": "u", "type": "command:local:Command", "name": "c", "parent": None}
    plan.show_plan({"stack": "t", "resources": [child], "outputs": {}, "cost": {}, "warnings": []})
    out = capsys.readouterr().out
    assert "1 epoch," in out
    assert "1 node is off" in out
    assert "1 resource\n" in out
    assert ONE.findall(out) == []


def test_the_report_of_one_run(tmp_path: Path) -> None:
    import datetime

    kept = Kept(tmp_path / "20261121T120000Z-job-1-0.json", local(1, epochs=1))
    text = page.render(
        ["local"], [runs.of(kept, "local")], runs.published_runs(), [], datetime.datetime.now(datetime.UTC)
    )
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text.partition("</style>")[2]).replace("\xa0", " "))
    assert "1 epoch" in plain
    assert ONE.findall(plain) == []


def test_every_sentence_is_of_a_test_that_is_there() -> None:
    """Running its file with --update-snapshots drops those of a function that was renamed or removed."""
    lost = []
    for file in sorted((ROOT / "tests").rglob("sentences/*.txt")):
        module = file.parents[1] / f"test_{file.stem}.py"
        heads = re.findall(rf"^{HEAD}(\w+)$", file.read_text(encoding="utf-8"), re.M)
        text = module.read_text(encoding="utf-8") if module.exists() else ""
        lost += [f"{file.relative_to(ROOT)}: {head}" for head in heads if f"def {head}(" not in text]
        lost += [] if text else [str(file.relative_to(ROOT))]
    assert lost == []
