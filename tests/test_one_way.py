"""Machines' code starts programs, locks files and waits by one module each; no other does it by hand.

`node/subprocesses.py`, `node/locks.py` and `node/waiting.py` have the protections that a copy would forget. A
loop with a pause of its own is left to what waits for events for as long as its process lives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.checkout import ROOT

ONE_WAY = {
    "subprocess.run": "node/subprocesses.py",
    "subprocess.Popen": "node/subprocesses.py",
    "subprocess.check_output": "node/subprocesses.py",
    "os.system": "node/subprocesses.py",
    "fcntl.flock": "node/locks.py",
    "fcntl.lockf": "node/locks.py",
}
"""Function -> the only module that calls it."""
ALONE = {"localcloud/hosts_namespace.py", "localcloud/init.py", "node/loader.py"}
"""Files that run by themselves, before or without the project's other code."""


def calls(text: str) -> Iterator[str]:
    """Yield the functions of `ONE_WAY` that a text calls."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in ONE_WAY:
            yield name


def deadlines(text: str) -> Iterator[int]:
    """Yield the lines of loops that pause and compare the time with a deadline: `now` on one side alone."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.While | ast.For):
            inside = list(ast.walk(node))
            pauses = any(isinstance(i, ast.Call) and ast.unparse(i.func) == "time.sleep" for i in inside)
            sides = [side for i in inside if isinstance(i, ast.Compare) for side in (i.left, *i.comparators)]
            if pauses and any(ast.unparse(side) == "time.monotonic()" for side in sides):
                yield node.lineno


@pytest.mark.parametrize("folder", ["node", "localcloud"])
def test_machines_code_has_one_way_to_start_programs_to_lock_and_to_wait(folder: str) -> None:
    others = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        file, text = str(path.relative_to(ROOT)), path.read_text()
        if file in ALONE:
            continue
        others += [f"{file}: {name}" for name in calls(text) if ONE_WAY[name] != file]
        others += [f"{file}:{line}: a wait" for line in deadlines(text) if file != "node/waiting.py"]
    assert others == []


def test_other_ways_are_found() -> None:
    assert list(calls("import subprocess\nsubprocess.run(['true'])\nfcntl.flock(1, 2)\n")) == [
        "subprocess.run", "fcntl.flock",
    ]  # fmt: skip
    wait = "end = time.monotonic() + 5\nwhile not done() and time.monotonic() < end:\n    time.sleep(1)\n"
    assert list(deadlines(wait)) == [2]
