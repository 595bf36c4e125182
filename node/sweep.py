"""A series of benchmark runs, with one call each to submit, show or cancel all of them.

Each job waits for the end of the job before it, so that no run disturbs another and all find warm nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.benchmark import MARK, Jobs, Run
from node.model import Settings
from node.slurm.control import Slurm


class Sweep:
    """A series of runs, which are identified by their folders. Requests and answers are JSON values."""

    def __init__(self, settings: Settings, control: Slurm) -> None:
        self._settings = settings
        self._control = control

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Submits the runs that have not been submitted yet. A repeated request submits nothing.

        Args:
            request: `needs`, the paths that every run needs; `after`, the job that the first run follows, or
                null for all benchmarks that wait or run; `runs`, each with `folder` and `script`.

        Returns:
            `missing`, the needed paths that do not exist (then nothing was submitted); `runs`, with the `job`
            or the `error` of each run.

        Raises:
            SlurmDown: The controller does not answer. The same call may work later.
        """
        missing = [path for path in request["needs"] if not Path(path).exists()]
        if missing:
            return {"missing": missing, "runs": []}
        after = _benchmarks(self._control.jobs()) if request["after"] is None else [request["after"]]
        answers: list[dict[str, Any]] = []
        for asked in request["runs"]:
            try:
                job = self._run(asked["folder"]).submit(asked["script"], again=False, after=after)
            except RuntimeError as error:
                answers.append({"job": None, "error": str(error)})
                continue
            answers.append({"job": job, "error": None})
            after = [job]
        return {"missing": [], "runs": answers}

    def show(self, folders: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the status of each run (`Run.show`)."""
        jobs = self._control.jobs()
        return [self._run(folder).show(jobs) for folder in folders]

    def cancel(self, folders: Sequence[str]) -> list[int]:
        """Cancels the jobs that have not ended. The last is cancelled first, so that none of them starts."""
        jobs = self._control.jobs()
        found = [job for folder in reversed(folders) if (job := self._run(folder).job(jobs)) is not None]
        self._control.cancel(found)
        return found

    def _run(self, folder: str) -> Run:
        return Run(self._settings, self._control, folder)


def _benchmarks(jobs: Jobs) -> list[int]:
    """The jobs of all benchmarks that wait or run, of all users."""
    ours = (job for job in jobs.values() if (job.comment or "").startswith(MARK))
    return [job.id for job in ours if not job.is_over]
