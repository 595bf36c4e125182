"""A real slurmctld that is killed before, or after, it has saved that a job is requeued."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.design.model import SlurmSettings
from node.elastic.plan import Action
from node.elastic.requeue import Requeue
from node.elastic.rules import TAKEN, Verb
from node.slurm.states import JobState
from tests.node.slurm_cluster import SlurmCluster, design, needs_slurm, partition

pytestmark = [pytest.mark.cluster, needs_slurm]

# It ends after SIGTERM, but only when slurmctld is there again: `go` says so.
SCRIPT = """#!/bin/bash
trap 'echo term >>{notes}; until [ -e {go} ]; do sleep 0.1; done; exit {code}' TERM
echo began >>{notes}
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    slurm = SlurmSettings(suspend_time=600, suspend_timeout=2, resume_timeout=300, slurmd_timeout=300)
    with SlurmCluster(design(partition(nodes=8), slurm=slurm)) as running:
        yield running


@dataclass
class Run:
    """A job that runs on two nodes, and what the elastic daemon knows of its requeue."""

    cluster: SlurmCluster
    folder: Path
    nodes: tuple[str, str]
    code: int

    def __post_init__(self) -> None:
        self.notes, self.go = self.folder / "notes", self.folder / "go"
        self.control = self.cluster.control
        self.file = self.folder / "requeues.json"
        self.requeue = Requeue(self.control, self.file)
        script = self.folder / "job.sh"
        script.write_text(SCRIPT.format(notes=self.notes, go=self.go, code=self.code))
        nodes = ",".join(self.nodes)
        options = ["--parsable", "-N2", "-w", nodes, f"--output={self.folder}/output"]
        self.job = int(self.cluster.run("sbatch", *options, str(script)).stdout)

    def wait_until_running(self) -> None:
        self.cluster.wait("the job runs", lambda: "began" in self.words(), 180)
        self.cluster.wait("Slurm says so", lambda: self.state().state == "RUNNING")

    def words(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

    def state(self) -> JobState:
        return self.control.jobs()[self.job]

    def evacuate(self) -> None:
        """Requeue the job because its second node will be taken, and wait until its script has SIGTERM."""
        action = Action(Verb.EVACUATE, self.nodes[1], None, f"{TAKEN} at 09:40:15 UTC")
        self.requeue.evacuate([action], self.control.nodes())
        self.cluster.wait("SIGTERM", lambda: "term" in self.words())

    def saved(self) -> Path:
        """Wait until slurmctld has saved the job as it is now, and return the folder with its state."""
        folder, before = Path(self.cluster.folders.state), time.time()
        self.control.save_all(self.state())
        files = [folder / "job_state", folder / "node_state"]
        self.cluster.wait("a save", lambda: all(file.stat().st_mtime > before for file in files))
        return folder

    def pass_until(self, what: str, *states: str) -> None:
        """Run the daemon's passes until the job is in one of these states."""

        def once() -> bool:
            self.requeue.watch([])
            return self.state().state in states

        self.cluster.wait(what, once, 180)

    def runs_again(self) -> None:
        """Give the evacuated node back, and wait until the job runs there for the second time."""
        self.control.undrain({self.nodes[1]: self.control.nodes()[self.nodes[1]]})
        self.control.update_job(self.job, start_now=True)
        self.pass_until("it runs again", "RUNNING")
        assert self.state().restarts == 1


def test_requeues_that_slurmctld_forgets_are_repeated_but_not_those_of_cancelled_jobs(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    runs = []
    for number, code in enumerate((143, 0, 143)):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(Run(cluster, folder, (f"debug-{2 * number}", f"debug-{2 * number + 1}"), code))
    failed, completed, cancelled = runs
    for run in runs:
        run.wait_until_running()
    options = ["--parsable", f"--dependency=afterok:{failed.job}"]
    number = int(cluster.run("sbatch", *options, "--wrap", "true").stdout)

    def later() -> JobState:
        return cluster.control.jobs()[number]

    # slurmctld is killed with the state that it had saved before the evacuation.
    state, copy = cancelled.saved(), tmp_path / "state"
    shutil.copytree(state, copy)
    for run in runs:
        run.evacuate()
    cluster.kill_controller()
    shutil.rmtree(state)
    copy.rename(state)
    cluster.start_controller()
    for run in runs:
        seen = run.state()
        assert (seen.state, seen.restarts, seen.admin_comment) == ("RUNNING", 0, None)
    cancelled.control.cancel([cancelled.job])
    for run in runs:
        run.go.touch()
        # The daemon was lost with slurmctld.
        run.requeue = Requeue(run.control, run.file)
    cluster.wait("Slurm gives the later job up", lambda: later().reason == "DependencyNeverSatisfied")
    for run in (failed, completed):
        run.pass_until("it waits again", "PENDING")
        seen = run.state()
        assert (seen.restarts, run.words()) == (1, ["began", "term"])
        assert (seen.admin_comment or "").startswith("preempted: the cloud takes this machine")
    cancelled.pass_until("it is over", "CANCELLED")
    cancelled.requeue.watch([])
    seen = cancelled.state()
    assert (seen.state, seen.restarts) == ("CANCELLED", 0)
    failed.runs_again()
    assert later().state == "PENDING"
    assert cluster.control.dependencies()[number] == f"afterok:{failed.job}(unfulfilled)"
    cluster.control.cancel([failed.job, completed.job, number])


@pytest.mark.wide
def test_a_requeue_that_slurmctld_has_saved_is_not_repeated(cluster: SlurmCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path, ("debug-6", "debug-7"), 143)
    run.wait_until_running()
    run.evacuate()
    file, before = Path(cluster.folders.state) / "job_state", time.time()
    run.control.update_job(run.job, admin_comment="a note")
    cluster.wait("a save", lambda: file.stat().st_mtime > before)
    cluster.kill_controller()
    cluster.start_controller()
    run.go.touch()
    run.requeue = Requeue(run.control, run.file)
    run.pass_until("it waits again", "PENDING")
    run.runs_again()
    run.control.cancel([run.job])
