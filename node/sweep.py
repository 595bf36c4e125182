"""A series of benchmark runs, with one call each to prepare, submit, show, cancel or close all of them.

Each job waits for the end of the job before it, so that no run disturbs another and all find warm nodes.

A sweep has no file of its own: its runs' folders hold it. Each is prepared with its script and a label before
the first is submitted, and closed when the user was told how it ended. So whoever asks finds the sweep that
is under way, and every call can be repeated. A run's folder is `<workload>/<script>-<sweep>-<number>`, where
a sweep is its number, counted on this cluster, and a digest of what was asked for: two who ask for the same
at the same moment have the same runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.benchmark import MARK, Jobs, Run
from node.design.model import Settings
from node.slurm.control import Slurm

FOLDER = re.compile(r"[0-9a-f]{12}-(?P<sweep>(?P<count>[0-9]{1,6})-[0-9a-f]{8})-(?P<number>[0-9]{1,6})")
"""The name of a run's folder in that of its workload."""


class Sweep:
    """The sweeps of a user. Requests and answers are JSON values; runs are identified by their folders."""

    def __init__(self, settings: Settings, control: Slurm) -> None:
        self._settings = settings
        self._control = control

    def open(self, _request: None = None) -> dict[str, Any]:
        """Return the oldest sweep that is under way.

        Returns:
            `next`, the number of the next sweep; `runs`, in their order, each with its `label` and what
            `show` says of it. There are none if no sweep is under way.
        """
        bench = Path(self._settings.site.shared) / "bench"
        names = [(path, name) for path in bench.glob("*/*-*-*-*") if (name := FOLDER.fullmatch(path.name))]
        sweeps: dict[tuple[int, str], dict[int, str]] = {}
        for path, name in names:
            folder = str(path.relative_to(bench))
            if self._run(folder).prepared:
                key = int(name["count"]), f"{path.parent.name}/{name['sweep']}"
                sweeps.setdefault(key, {})[int(name["number"])] = folder
        # The first run is prepared last and closed last: a sweep without it is not whole, or over.
        whole = [sweeps[key] for key in sorted(sweeps) if 1 in sweeps[key]]
        folders = [folder for _, folder in sorted(whole[0].items())] if whole else []
        shown = self.show(folders) if folders else []
        return {
            "next": 1 + max((int(name["count"]) for _, name in names), default=0),
            "runs": [
                {"label": self._run(folder).label, **run} for folder, run in zip(folders, shown, strict=True)
            ],
        }

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prepare all runs of a sweep.

        Args:
            request: `needs`, the paths that every run needs; `scripts`, by keys; `runs`, each with `folder`,
                the key of its `script`, and `label`.

        Returns:
            `missing`, the needed paths that do not exist; then nothing was prepared.
        """
        missing = [path for path in request["needs"] if not Path(path).exists()]
        if not missing:
            for run in reversed(request["runs"]):
                self._run(run["folder"]).prepare(request["scripts"][run["script"]], run["label"])
        return {"missing": missing}

    def submit(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Submit the prepared runs that have not been submitted yet. A repeated request submits nothing.

        Args:
            request: `after`, the job that the first run follows, or null for all benchmarks that wait or run;
                `folders` of the runs.

        Returns:
            The `job` or the `error` of each run.

        Raises:
            SlurmDown: The controller does not answer. The same call may work later.
        """
        after = _benchmarks(self._control.jobs()) if request["after"] is None else [request["after"]]
        answers: list[dict[str, Any]] = []
        for folder in request["folders"]:
            try:
                job = self._run(folder).submit(None, again=False, after=after)
            except RuntimeError as error:
                answers.append({"job": None, "error": str(error)})
                continue
            answers.append({"job": job, "error": None})
            after = [job]
        return answers

    def show(self, folders: Sequence[str]) -> list[dict[str, Any]]:
        """Return the status of each run (`Run.show`), and whether its sweep is under way (`open`)."""
        jobs = self._control.jobs()
        runs = [self._run(folder) for folder in folders]
        # The labels come first: a run that its sweep's end has closed has ended by then.
        return [{"open": run.prepared, **run.show(jobs)} for run in runs]

    def cancel(self, folders: Sequence[str]) -> list[int]:
        """Cancel the jobs that have not ended and close the runs, and return the jobs' ids.

        The last is cancelled first, so that none of them starts.
        """
        cancelled = self._end(folders)
        self.close(folders)
        # From here on nobody submits any; somebody may have done it meanwhile.
        return list(dict.fromkeys([*cancelled, *self._end(folders)]))

    def close(self, folders: Sequence[str]) -> None:
        """Close the runs, the first one last."""
        for folder in reversed(folders):
            self._run(folder).close()

    def _end(self, folders: Sequence[str]) -> list[int]:
        jobs = self._control.jobs()
        ids = [job for folder in reversed(folders) if (job := self._run(folder).job(jobs)) is not None]
        self._control.cancel(ids)
        return ids

    def _run(self, folder: str) -> Run:
        return Run(self._settings, self._control, folder)


def _benchmarks(jobs: Jobs) -> list[int]:
    """Return the jobs of all benchmarks that wait or run, of all users."""
    benchmarks = (job for job in jobs.values() if (job.comment or "").startswith(MARK))
    return [job.id for job in benchmarks if not job.is_over]
