"""A pytest plugin that ends the clusters which workers could not take down: killed, crashed, or interrupted.

After Ctrl-C execnet gives a worker five seconds, interrupts its teardown and ends it ten seconds later. A
`./cluster down` takes longer where jobs have their grace.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

VARIABLE = "SLURM_STACKS_TEST_CHECKOUTS"
"""The folder with a file for each checkout that the tests of this run have made."""

_own: list[Path] = []


def register(folder: Path, stack: str) -> None:
    """Remember a checkout until the end of the run; nothing is remembered outside of pytest."""
    if notes := os.environ.get(VARIABLE):
        Path(notes, uuid.uuid4().hex).write_text(f"{stack}\n{folder}")


def pytest_configure() -> None:
    # Workers, and a pytest that a test starts, have the variable from us.
    if VARIABLE not in os.environ:
        _own.append(Path(tempfile.mkdtemp(prefix="slurm-stacks-checkouts-")))
        os.environ[VARIABLE] = str(_own[0])


def pytest_unconfigure() -> None:
    for notes in _own:
        with contextlib.suppress(FileNotFoundError):
            for note in sorted(notes.iterdir()):
                stack, _, folder = note.read_text().partition("\n")
                _end(Path(folder), stack)
        shutil.rmtree(notes, ignore_errors=True)
        os.environ.pop(VARIABLE, None)
    _own.clear()


def _end(folder: Path, stack: str) -> None:
    from infra.program import locations
    from infra.program.stack import Stack
    from operations.local.agent import end_cluster
    from operations.local.run_directory import RunDirectory

    path = locations.run_dir(Stack(folder, stack))
    if path.exists():
        print(f"a cluster of a test was still up and is ended now: {folder}", flush=True)
        end_cluster(RunDirectory(path))
