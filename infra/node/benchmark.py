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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.node.model import Folders, Settings
from infra.node.slurm.control import Slurm, SlurmDown, is_unanswered
from infra.node.slurm.hostlist import fold
from infra.node.slurm.states import JobState

Jobs = Mapping[int, JobState]

SCRIPT = "run_keras"
MARK = "slurm-stacks:"
"""Begins the comment of a benchmark's job; the run's folder follows."""
JOB_FILE = "jobid"
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.json"
TAIL_LINES = 15
TAIL_BYTES = 1 << 16


class Run:
    """A benchmark run in its folder.

    Args:
        folder: relative to the shared folder's `bench`.
    """

    def __init__(self, settings: Settings, control: Slurm, folder: str) -> None:
        self._settings = settings
        self._control = control
        self._name = folder
        self.folder = Path(settings.site.shared) / "bench" / folder

    def submit(self, script: str, *, again: bool = True, after: Sequence[int] = ()) -> int:
        """The run's job: the one that waits, runs or has a result, else a new one.

        Args:
            again: submit anew where a job has ended without a result.
            after: jobs whose end, whatever it is, a new job waits for. Slurm may have forgotten them.

        Raises:
            SlurmDown: the controller does not answer; the same call may work later.
            RuntimeError: sbatch refused, the message is its own; or the run is another user's and has
                failed.
        """
        if self.folder.exists() and not os.access(self.folder, os.W_OK):
            return self._of_another(again)
        with self._locked() as lock:
            jobs = self._control.jobs()
            job = self._job_id(jobs)
            if job is not None:
                if not again or self._alive(job, jobs) or (self.folder / RESULT_FILE).exists():
                    self._note(job)
                    return job
                self._put_away(job)
            (self.folder / SCRIPT).write_text(script)
            job = self._sbatch([number for number in after if number in jobs], lock)
            self._note(job)
            return job

    def _of_another(self, again: bool) -> int:
        """The job of a run that another user has submitted: the same wish is the same run, whoever has it."""
        jobs = self._control.jobs()
        job = self._job_id(jobs)
        if job is not None and (not again or self._alive(job, jobs) or (self.folder / RESULT_FILE).exists()):
            return job
        raise RuntimeError(
            f"{self.folder} is another user's run, and has no result: they can submit it again, you cannot. "
            "One with another value of the benchmark (epochs, seed, …) is yours"
        )

    def cancel(self) -> int | None:
        """End the run's job, if it is not over. Returns its id."""
        job = self.job(self._control.jobs())
        if job is not None:
            self._control.cancel([job])
        return job

    def show(self, jobs: Jobs | None = None) -> dict[str, Any]:
        """What is known: the job as Slurm has it, the training's progress, the result, the output's end.

        Args:
            jobs: what Slurm said a moment ago, so that many runs need one question; by default it is asked.
        """
        # Before the files: a job that was over by then has written them all.
        jobs = self._control.jobs() if jobs is None else jobs
        job = self._job_id(jobs)
        state = self._state(job, jobs)
        alive = state is not None and not state.is_over
        return {
            "folder": str(self.folder),
            "job": None
            if job is None
            else {
                "id": job,
                "state": state.state if state else "GONE",
                "nodes": fold(state.nodes) if state else "",
                "cause": state.cause if state else None,
                "alive": alive,
            },
            "progress": _read(self.folder / PROGRESS_FILE),
            "result": _read(self.folder / RESULT_FILE),
            "tail": self._tail(),
        }

    def job(self, jobs: Jobs) -> int | None:
        """The run's job if it is not over."""
        job = self._job_id(jobs)
        return job if job is not None and self._alive(job, jobs) else None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    def _job_id(self, jobs: Jobs) -> int | None:
        """As it was noted; or, where a submit was cut off before that, as Slurm remembers it."""
        try:
            return int((self.folder / JOB_FILE).read_text())
        except FileNotFoundError:
            mine = [job for job in jobs if self._state(job, jobs) and not self._attic(job).exists()]
            return max(mine, default=None)

    def _state(self, job: int | None, jobs: Jobs) -> JobState | None:
        """None, too, where the number has become another's: storage may outlive a cluster and its numbers."""
        state = jobs.get(job) if job is not None else None
        return state if state is not None and state.comment == self._comment else None

    @property
    def _comment(self) -> str:
        return f"{MARK}{self._name}"

    def _alive(self, job: int, jobs: Jobs) -> bool:
        state = self._state(job, jobs)
        return state is not None and not state.is_over

    def _note(self, job: int) -> None:
        draft = self.folder / f".{JOB_FILE}"
        draft.write_text(f"{job}\n")
        draft.replace(self.folder / JOB_FILE)

    def _attic(self, job: int) -> Path:
        return self.folder / f"job-{job}"

    def _put_away(self, job: int) -> None:
        """Keep what a failed job left, out of the way of the next; its number last, as what says that."""
        self._attic(job).mkdir(exist_ok=True)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == JOB_FILE):
            if path.is_file() and path.name != ".lock":
                path.replace(self._attic(job) / path.name)

    def _sbatch(self, after: Sequence[int], lock: int) -> int:
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
        options = ["--parsable", f"--comment={self._comment}"]
        if after:
            options.append(f"--dependency=afterany:{':'.join(map(str, after))}")
        result = subprocess.run(
            ["/usr/bin/sbatch", *options, SCRIPT],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            # If we are killed it goes on, and the next submit of this run waits for its end.
            pass_fds=(lock,),
        )
        if result.returncode:
            if is_unanswered(result.stderr):
                raise SlurmDown(["sbatch"], result.returncode, result.stderr)
            raise RuntimeError(result.stderr.strip() or f"sbatch: exit status {result.returncode}")
        return int(result.stdout.strip().split(";")[0])

    def _tail(self) -> list[str]:
        lines: list[str] = []
        for path in sorted(self.folder.glob("out-*.txt")):
            with path.open("rb") as output:
                # A long training's output is not read as a whole at every look.
                output.seek(max(0, path.stat().st_size - TAIL_BYTES))
                lines += output.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return lines


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
