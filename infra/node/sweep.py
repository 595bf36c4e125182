"""Many runs of the benchmark, one after another: submitted, looked at and cancelled in one call each.

Each job waits for the end of the one before it, so that no run disturbs another and all find warm nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.node.benchmark import MARK, Jobs, Run
from infra.node.model import Settings
from infra.node.slurm.control import Slurm


class Sweep:
    """Runs by their folders; what is asked and answered is JSON."""

    def __init__(self, settings: Settings, control: Slurm) -> None:
        self._settings = settings
        self._control = control

    def submit(self, wish: dict[str, Any]) -> dict[str, Any]:
        """Submit what has not been submitted. The same wish again submits nothing anew.

        Args:
            wish: `needs`, paths without which no run could work; `after`, the job that the first one follows,
                or null for every benchmark that is under way; `runs`, each with `folder` and `script`.

        Returns:
            `missing`, those of the paths that are not there (then nothing was submitted); `runs`, for each
            its `job` or the `error` with which it was refused.

        Raises:
            SlurmDown: the controller does not answer; the same call may work later.
        """
        missing = [path for path in wish["needs"] if not Path(path).exists()]
        if missing:
            return {"missing": missing, "runs": []}
        after = _benchmarks(self._control.jobs()) if wish["after"] is None else [wish["after"]]
        answers: list[dict[str, Any]] = []
        for asked in wish["runs"]:
            try:
                job = self._run(asked["folder"]).submit(asked["script"], again=False, after=after)
            except RuntimeError as error:
                answers.append({"job": None, "error": str(error)})
                continue
            answers.append({"job": job, "error": None})
            after = [job]
        return {"missing": [], "runs": answers}

    def show(self, folders: Sequence[str]) -> list[dict[str, Any]]:
        """What `Run.show` says of each."""
        jobs = self._control.jobs()
        return [self._run(folder).show(jobs) for folder in folders]

    def cancel(self, folders: Sequence[str]) -> list[int]:
        """End the jobs that are not over, the last first: none starts because the one before it ended."""
        jobs = self._control.jobs()
        found = [job for folder in reversed(folders) if (job := self._run(folder).job(jobs)) is not None]
        self._control.cancel(found)
        return found

    def _run(self, folder: str) -> Run:
        return Run(self._settings, self._control, folder)


def _benchmarks(jobs: Jobs) -> list[int]:
    """Benchmarks that wait or run, whoever submitted them."""
    ours = (job for job in jobs.values() if (job.comment or "").startswith(MARK))
    return [job.id for job in ours if not job.is_over]
