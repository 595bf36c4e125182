"""Names that the launcher of a user's program, its batch script and the code that stages it share."""

from __future__ import annotations

FILES = "files"
"""The folder of the staged workload with the user's files."""
LAUNCHER = frozenset(
    {
        *("__init__.py", "errors.py", "files.py", "waiting.py", "slurm.py", "rendezvous.py", "cores.py"),
        *("result.py", "program.py", "launcher.py"),
    }
)
"""The files of this package that start a user's program and write its result. Standard library only."""

WORK = "work"
"""The folder of a run in which the program starts: a copy of its files, which it may change."""
PROGRESS_LINES = "progress.jsonl"
VALUES = "values.json"
STATE = "progress.json"
RESULT = "result.json"
"""Files of a run's folder: the program writes the first two, the batch script the others."""
