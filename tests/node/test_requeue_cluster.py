"""A real slurmctld that is killed before, or after, it has saved that a job is requeued."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.elastic.plan import Action
from node.elastic.requeue import Requeue
from node.elastic.rules import TAKEN, Verb
from node.model import SlurmSettings
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
        self.requeue = Requeue(self.control, self.folder / "requeues.json")
        script = self.folder / "job.sh"
        script.write_text(SCRIPT.format(notes=self.notes, go=self.go, code=self.code))
        nodes = ",".join(self.nodes)
        options = ["--parsable", "-N2", "-w", nodes, f"--output={self.folder}/output"]
        self.job = int(self.cluster.run("sbatch", *options, str(script)).stdout)
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


def forget(run: Run) -> None:
    """Evacuate the job, and kill slurmctld with the state that it had saved before."""
    folder = run.saved()
    copy = run.folder / "state"
    shutil.copytree(folder, copy)
    run.evacuate()
    run.cluster.kill_controller()
    shutil.rmtree(folder)
    copy.rename(folder)
    run.cluster.start_controller()
    state = run.state()
    assert (state.state, state.restarts, state.admin_comment) == ("RUNNING", 0, None)


def remember(run: Run) -> None:
    """Evacuate the job, and kill slurmctld after it has saved that."""
    run.evacuate()
    folder, before = Path(run.cluster.folders.state), time.time()
    run.control.update_node([run.nodes[0]], weight=2)
    run.control.update_job(run.job, admin_comment="a note")
    run.cluster.wait("a save", lambda: (folder / "job_state").stat().st_mtime > before)
    run.cluster.kill_controller()
    run.cluster.start_controller()


@pytest.mark.parametrize(
    ("lose", "code", "nodes"),
    [
        pytest.param(forget, 143, ("debug-0", "debug-1"), id="forgotten, and failed"),
        pytest.param(
            forget, 0, ("debug-2", "debug-3"), id="forgotten, and completed", marks=pytest.mark.wide
        ),
        pytest.param(remember, 143, ("debug-4", "debug-5"), id="saved", marks=pytest.mark.wide),
    ],
)
def test_a_requeued_job_waits_again_whether_or_not_slurmctld_had_saved_that(
    cluster: SlurmCluster, tmp_path: Path, lose: object, code: int, nodes: tuple[str, str]
) -> None:
    run = Run(cluster, tmp_path, nodes, code)
    assert callable(lose)
    lose(run)
    run.go.touch()
    # The daemon was lost with slurmctld.
    run.requeue = Requeue(run.control, tmp_path / "requeues.json")
    run.pass_until("it waits again", "PENDING")
    state = run.state()
    assert (state.restarts, run.words()) == (1, ["began", "term"])
    if lose is forget:
        assert (state.admin_comment or "").startswith("preempted: the cloud takes this machine")
    # Its evacuated node is back.
    run.control.undrain({nodes[1]: run.control.nodes()[nodes[1]]})
    run.control.update_job(run.job, start_now=True)
    run.pass_until("it runs again", "RUNNING")
    assert run.state().restarts == 1
    run.control.cancel([run.job])


def test_a_job_that_its_user_cancels_stays_cancelled(cluster: SlurmCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path, ("debug-6", "debug-7"), 143)
    forget(run)
    run.control.cancel([run.job])
    run.go.touch()
    run.pass_until("it is over", "CANCELLED")
    run.requeue.watch([])
    state = run.state()
    assert (state.state, state.restarts) == ("CANCELLED", 0)
