"""The cluster's own command with a file as the queue in place of Slurm. Everything else is real.

`python fake_tool.py FOLDER submit|cancel …`: FOLDER holds settings.json, the queue and a log of the calls.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Queue:
    """The jobs in the order of their submission: id -> (state, comment)."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "queue.json"

    def read(self) -> dict[int, tuple[str, str]]:
        if not self._file.exists():
            return {}
        return {int(job): tuple(known) for job, known in json.loads(self._file.read_text()).items()}

    def write(self, jobs: dict[int, tuple[str, str]]) -> None:
        self._file.write_text(json.dumps(jobs))


def main(folder: Path, arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    from node import command_line
    from node.system import foreign, subprocesses
    from tests.support.doubles import FakeControl, job

    queue = Queue(folder)
    with (folder / "calls").open("a") as log:
        log.write(json.dumps(arguments) + "\n")

    class Control(FakeControl):
        def __init__(self, _conf: str) -> None:
            known = queue.read().items()
            me = foreign.name(os.geteuid())
            jobs = [job(number, state, comment=said, user=me) for number, (state, said) in known]
            super().__init__(jobs=jobs)

        def cancel(self, jobs: Iterable[int | str]) -> None:
            have = queue.read()
            queue.write({**have, **{int(number): ("CANCELLED", have[int(number)][1]) for number in jobs}})

    def sbatch(command: list[str], *_arguments: Any, **_options: Any) -> subprocesses.Ran:
        assert command[0].endswith("sbatch")
        jobs = queue.read()
        number = 41 + len(jobs)
        comment = next((w.partition("=")[2] for w in command if w.startswith("--comment=")), "")
        queue.write({**jobs, number: ("PENDING", comment)})
        return subprocesses.Ran(0, f"{number}\n")

    command_line.Control = Control  # type: ignore[attr-defined, assignment]
    subprocesses.run = sbatch  # type: ignore[assignment]
    return command_line.main(str(folder / "settings.json"), arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
