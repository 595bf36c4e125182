"""The benchmark on the login machine: one idempotent submit, cancel, and what is known of the run.

A run's folder is named by its content (`<shared>/bench/<workload digest>/<run digest>`), so the same wish is
the same run however often, and over whichever connection, it is expressed.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.node.model import Folders, Settings
from infra.node.slurm.control import Control
from infra.node.slurm.hostlist import fold

SCRIPT = "run_keras"
JOB_FILE = "jobid"
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.json"
TAIL_LINES = 15


class Run:
    """A benchmark run in its folder.

    Args:
        folder: relative to the shared folder's `bench`.
    """

    def __init__(self, settings: Settings, control: Control, folder: str) -> None:
        self._settings = settings
        self._control = control
        self.folder = Path(settings.site.shared) / "bench" / folder

    def submit(self, script: str) -> int:
        """The run's job: the one that waits, runs or has a result, else a new one.

        Raises:
            RuntimeError: sbatch refused; the message is its own.
        """
        with self._locked():
            job = self._job_id()
            if job is not None and (self._alive(job) or (self.folder / RESULT_FILE).exists()):
                return job
            if job is not None:
                self._put_away(job)
            (self.folder / SCRIPT).write_text(script)
            job = self._sbatch()
            draft = self.folder / f".{JOB_FILE}"
            draft.write_text(f"{job}\n")
            draft.replace(self.folder / JOB_FILE)
            return job

    def cancel(self) -> int | None:
        """End the run's job, if there is one. Returns its id."""
        job = self._job_id()
        if job is not None:
            self._control.cancel([job])
        return job

    def show(self) -> dict[str, Any]:
        """What is known: the job as Slurm has it, the training's progress, the result, the output's end."""
        job = self._job_id()
        state = self._control.jobs().get(job) if job is not None else None
        return {
            "folder": str(self.folder),
            "job": None
            if job is None
            else {
                "id": job,
                "state": state.state if state else "GONE",
                "nodes": fold(state.nodes) if state else "",
                "cause": state.cause if state else None,
                "alive": state is not None and not state.is_over,
            },
            "progress": _read(self.folder / PROGRESS_FILE),
            "result": _read(self.folder / RESULT_FILE),
            "tail": self._tail(),
        }

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _job_id(self) -> int | None:
        try:
            return int((self.folder / JOB_FILE).read_text())
        except FileNotFoundError:
            return None

    def _alive(self, job: int) -> bool:
        state = self._control.jobs().get(job)
        return state is not None and not state.is_over

    def _put_away(self, job: int) -> None:
        """Keep what a failed job left, out of the way of the next."""
        for path in list(self.folder.iterdir()):
            if path.is_file() and path.name != ".lock":
                (self.folder / f"job-{job}").mkdir(exist_ok=True)
                path.replace(self.folder / f"job-{job}" / path.name)

    def _sbatch(self) -> int:
        folders = Folders(self._settings)
        # A job inherits its submitter's environment: a plain one makes every run alike.
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "USER": os.environ.get("USER", self._settings.site.user),
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(folders.slurm_conf),
            "SLURM_STACKS_SUBMITTED": f"{time.time():.3f}",
        }
        result = subprocess.run(
            ["/usr/bin/sbatch", "--parsable", SCRIPT],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"sbatch: {result.stderr.strip()}")
        return int(result.stdout.strip().split(";")[0])

    def _tail(self) -> list[str]:
        lines: list[str] = []
        for path in sorted(self.folder.glob("out-*.txt")):
            lines += path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return lines


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
