"""In each place where code runs, programs are started, files locked, and waits made by one module each.

These modules have the protections that a copy would forget. A loop with a pause of its own is left to what
waits for events for as long as its process or its job lives, and has no limit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.checkout import ROOT

START, LOCK, WAIT = "start", "lock", "wait"
CALLS = {
    "subprocess.run": START,
    "subprocess.Popen": START,
    "subprocess.call": START,
    "subprocess.check_call": START,
    "subprocess.check_output": START,
    "os.system": START,
    "os.popen": START,
    "os.posix_spawn": START,
    "fcntl.flock": LOCK,
    "fcntl.lockf": LOCK,
}
"""Function -> what it is a way to do."""
COMMANDS = {
    START: {"operations/programs.py", "operations/processes.py"},
    LOCK: {"node/system/locks.py"},
    WAIT: {"operations/waiting.py"},
}
MACHINES = {
    START: {"node/system/subprocesses.py"},
    LOCK: {"node/system/locks.py"},
    WAIT: {"node/system/waiting.py"},
}
JOBS = {START: {"workload/batch/mpi.py"}, LOCK: {"workload/data.py"}, WAIT: {"workload/waiting.py"}}
# The program may not import what acts. It runs one program, a command of `operations/`.
PROGRAM: dict[str, set[str]] = {START: {"infra/local.py"}, LOCK: set(), WAIT: set()}
WAYS = {
    "infra": PROGRAM,
    "operations": COMMANDS,
    "cli": COMMANDS,
    "node": MACHINES,
    "localcloud": MACHINES,
    "workload": JOBS,
}
"""Folder -> what is to be done -> the only modules that do it there."""
ALONE = {
    "localcloud/fork_server.py",
    "localcloud/hosts_namespace.py",
    "localcloud/init.py",
    "node/loader.py",
    "cli/fetch_uv.py",
}
"""Files that run by themselves, before or without the project's other code."""
SIGNALS = {
    "operations/local/system_packages.py": "Ctrl-C asks apt to stop; it is never killed",
    "cli/commands/logs.py": "the first Ctrl-C ends the program that follows a log, the second kills it",
    "cli/commands/run_tests.py": "the first Ctrl-C lets tests take their clusters down, the second ends them",
}
"""Files that start a program of their own -> the signal that it needs, and that nothing else needs."""

LIMITS = {"node/system/processes.py": "what each look sees decides the limit of the next"}
"""Files that have a wait of their own -> why."""


def calls(text: str) -> Iterator[str]:
    """Yield the functions of `CALLS` that a text calls."""
    if not any(name in text for name in CALLS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in CALLS:
            yield name


def deadlines(text: str) -> Iterator[int]:
    """Yield the lines of loops that end, pause, and compare the time with something: waits with a limit."""
    if "monotonic" not in text:
        return
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.Module):
            continue
        body = list(_own(function))
        times = {
            ast.unparse(node.targets[0])
            for node in body
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == "time.monotonic()"
        }
        for loop in (node for node in body if isinstance(node, ast.While | ast.For)):
            inside = list(ast.walk(loop))
            pauses = any(
                isinstance(node, ast.Call)
                and ast.unparse(node.func).rpartition(".")[2] in ("sleep", "pause", "_sleep")
                for node in inside
            )
            compared = [node for node in inside if isinstance(node, ast.Compare)]
            sides = [side for node in compared for side in (node.left, *node.comparators)]
            ends = not isinstance(loop, ast.While) or ast.unparse(loop.test) != "True"
            ends = ends or any(isinstance(node, ast.Break | ast.Return | ast.Raise) for node in inside)
            if (
                ends
                and pauses
                and any(
                    ast.unparse(part) in ("time.monotonic()", *times)
                    for side in sides
                    for part in ast.walk(side)
                )
            ):
                yield loop.lineno


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


@pytest.mark.parametrize("folder", WAYS)
def test_a_place_has_one_way_to_start_programs_to_lock_and_to_wait(folder: str) -> None:
    others = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        file, text, ways = str(path.relative_to(ROOT)), path.read_text(), WAYS[folder]
        if file in ALONE:
            continue
        started = [name for name in calls(text) if file not in ways[CALLS[name]]]
        others += [f"{file}: {name}" for name in started if CALLS[name] != START or file not in SIGNALS]
        others += [f"{file}:{line}: a wait" for line in deadlines(text) if file not in {*ways[WAIT], *LIMITS}]
    assert others == []


def test_no_exception_is_left_over() -> None:
    named = {file for ways in WAYS.values() for way in (START, LOCK) for file in ways[way]} | set(SIGNALS)
    assert [file for file in sorted(named) if not list(calls((ROOT / file).read_text()))] == []
    waits = {file for ways in WAYS.values() for file in ways[WAIT]}
    assert [file for file in sorted(waits) if "sleep" not in (ROOT / file).read_text()] == []
    assert [file for file in LIMITS if not list(deadlines((ROOT / file).read_text()))] == []
    assert [file for file in ALONE if not (ROOT / file).exists()] == []


def test_other_ways_are_found() -> None:
    assert list(calls("import subprocess\nsubprocess.run(['true'])\nfcntl.flock(1, 2)\n")) == [
        "subprocess.run", "fcntl.flock",
    ]  # fmt: skip
    wait = "end = time.monotonic() + 5\nwhile not done() and time.monotonic() < end:\n    time.sleep(1)\n"
    assert list(deadlines(wait)) == [2]
    named = "def f(sleep):\n    while True:\n        now = time.monotonic()\n"
    named += "        if now - began > 5:\n            break\n        sleep(1)\n"
    assert list(deadlines(named)) == [2]
    assert list(deadlines(named.replace("break", "pass"))) == []
    assert list(deadlines("while not over():\n    time.sleep(1)\n")) == []
