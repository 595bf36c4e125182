"""What people change at run time outlives each way in which slurmctld starts, on a real one.

Each object that scontrol makes or changes is set, whatever the release knows of it; and what scontrol shows
afterwards is compared with what it showed before. A job runs in a partition of people's all the time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.elastic.runtime import RuntimeChanges
from node.slurm import runtime
from node.slurm.configure import configure, read_changes
from node.slurm.control import SlurmError
from node.system import files
from tests.node.slurm_cluster import WAIT_FOR_NODES, SlurmCluster, design, needs_slurm, partition

pytestmark = needs_slurm

OPTIONS = (
    "AllowGroups=root", "AllocNodes=localhost", "Alternate=debug", "DefaultTime=7", "DisableRootJobs=YES",
    "ExclusiveUser=YES", "GraceTime=5", "Hidden=YES", "MaxNodes=3", "MinNodes=2", "LLN=YES",
    "MaxCPUsPerNode=2", "MaxCPUsPerSocket=2", "MaxTime=90", "OverSubscribe=YES:2", "OverTimeLimit=9",
    "PriorityJobFactor=3", "PriorityTier=4", "RootOnly=YES", "ReqResv=YES", "DefMemPerCPU=77",
    "MaxMemPerNode=900", "JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=100", "TRESBillingWeights=CPU=2.0,Mem=0.5G",
    "State=DRAIN", "CpuBind=core", "PowerDownOnIdle=YES", "DenyAccounts=x",
)  # fmt: skip
OF_PEOPLE = (
    *(("update", "PartitionName=own", option) for option in OPTIONS),
    ("create", "PartitionName=every", "Nodes=ALL", "OverSubscribe=EXCLUSIVE"),
    ("create", "PartitionName=empty", "State=INACTIVE"),
    ("update", "PartitionName=debug", "MaxTime=30", "AllowGroups=root", "State=DOWN", "DefMemPerNode=70"),
    ("update", "NodeName=debug-2", "Weight=77", "AvailableFeatures=tiny,ondemand,mine"),
    ("update", "NodeName=debug-2", "Comment=a comment", "Extra=more"),
    ("update", "NodeName=debug-1", "CpuBind=core"),
    ("update", "NodeName=debug-3", "State=DRAIN", "Reason=a reason"),
    (
        "create", "ReservationName=mine", "StartTime=now+1days", "Duration=60", "Users=root",
        "PartitionName=urgent", "Nodes=debug-1",
    ),
    ("setdebugflags", "+Backfill"),
    ("setdebug", "debug"),
    ("fsdampeningfactor", "3"),
    ("update", "SuspendExcNodes=debug-3"),
    ("update", "SuspendExcParts=urgent"),
    ("update", "SuspendExcStates=DRAIN"),
)  # fmt: skip
NEWER = ("MaxCPUsPerSocket", "PowerDownOnIdle", "SuspendExc")
"""What releases before 23.02 and 24.05 refuse."""


class Cluster(SlurmCluster):
    """A cluster with what the elastic daemon does."""

    def begin(self) -> RuntimeChanges:
        """Starts slurmctld with the product's own slurm.conf."""
        Path(self.folders.elastic).mkdir(parents=True, exist_ok=True)
        self.end(signal.SIGTERM)
        self.start_again()
        return RuntimeChanges(self.settings, self.control, Path(self.folders.elastic))

    def end(self, number: int) -> None:
        process = self._processes.pop("slurmctld")
        os.kill(process.pid, number)
        process.wait(60)

    def start_again(self) -> None:
        configure(self.settings, self._version(), files.write)
        self.start_controller()

    @property
    def state(self) -> Path:
        return Path(self.folders.state)

    def saved(self) -> None:
        """Waits until slurmctld has saved what it knows."""
        since = time.time()
        self.control.save_all(self.control.jobs()[1])
        self.control.run("scontrol", "update", "ReservationName=mine", "Users=root")
        self.control.run("scontrol", "update", "PartitionName=urgent", "MaxTime=60")
        files_of_state = [self.state / f"{kind}_state" for kind in ("job", "node", "part", "resv")]
        self.wait("slurmctld's save", lambda: all(f.stat().st_mtime > since for f in files_of_state))

    def shown(self) -> dict[str, object]:
        control = self.control
        nodes = {
            name: (node.is_drained, node.reason) for name, node in control.nodes().items() if node.is_drained
        }
        texts = control.run("scontrol", "--oneliner", "show", "node", "debug-2")
        jobs = control.run("squeue", "--all", "--noheader", "--format=%i|%T|%P|%r|%l|%k|%f|%Q|%v")
        return {
            "partitions": runtime.shown_partitions(control.show_partitions()),
            "nodes": runtime.shown_nodes(control.nodes()),
            "slurmctld": runtime.shown_controller(control.show_config()),
            "drained": nodes,
            "texts": [word for word in ("Comment=a comment", "Extra=more") if word in texts],
            "reservations": control.reservations(),
            "jobs": sorted(jobs.splitlines()),
        }


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Cluster, RuntimeChanges]]:
    with Cluster(design(partition(nodes=4)), prolog=WAIT_FOR_NODES) as slurm:
        changes = slurm.begin()
        slurm.run("scontrol", "create", "PartitionName=urgent", "Nodes=debug-[0-1]", "MaxTime=60")
        slurm.run("scontrol", "create", "PartitionName=own", "Nodes=debug-[2-3]")
        batch = ("sbatch", "--parsable", "--output=/dev/null")
        slurm.run(*batch, "-p", "urgent", "-w", "debug-0", "--wrap", "sleep 600")
        slurm.run(*batch, "-p", "urgent", "-d", "afterok:1", "--comment=mine", "--nice=5", "--wrap", "true")
        slurm.run(*batch, "-p", "every", "-H", "--wrap", "true", check=False)
        slurm.wait("the job", lambda: slurm.control.jobs()[1].state == "RUNNING")
        refused = []
        for command in OF_PEOPLE:
            try:
                slurm.control.run("scontrol", *command)
            except SlurmError as error:
                refused.append(str(error))
        unknown = [text for text in refused if not any(word in text for word in NEWER)]
        assert unknown == []
        slurm.run(*batch, "-p", "every", "-H", "-C", "mine", "--wrap", "true")
        yield slurm, changes


def reconfigure(cluster: Cluster, changes: RuntimeChanges) -> None:
    changes.reconfigure()


def stop(cluster: Cluster, changes: RuntimeChanges) -> None:
    """`up`, a takeover, and other hardware: what is new is recorded, and slurmctld stops in order."""
    changes.once()
    cluster.end(signal.SIGTERM)
    cluster.start_again()


def kill(cluster: Cluster, changes: RuntimeChanges) -> None:
    changes.once()
    cluster.saved()
    cluster.end(signal.SIGKILL)
    cluster.start_again()


# The order matters: nothing of theirs is in slurm.conf when the first one runs.
@pytest.mark.parametrize("way", [reconfigure, kill, stop])
def test_what_people_have_made_and_changed_is_as_before(
    cluster: tuple[Cluster, RuntimeChanges], way: Callable[[Cluster, RuntimeChanges], None]
) -> None:
    slurm, changes = cluster
    before = slurm.shown()
    way(slurm, changes)
    after = slurm.shown()
    assert after == before
    states = {job.id: job.state for job in slurm.control.jobs().values()}
    assert (states[1], states[2]) == ("RUNNING", "PENDING"), "and no job has seen it"
    record = read_changes(slurm.state)
    changes.once()
    assert read_changes(slurm.state) == record, "nothing is new"


def test_a_partition_is_recorded_as_soon_as_slurmctld_has_saved_it(
    cluster: tuple[Cluster, RuntimeChanges],
) -> None:
    slurm, changes = cluster
    changes.partitions()
    slurm.run("scontrol", "create", "PartitionName=late", "Nodes=debug-1")
    slurm.run("sbatch", "-H", "-p", "late", "--output=/dev/null", "--wrap", "true")
    slurm.saved()
    changes.partitions()
    slurm.end(signal.SIGKILL)
    slurm.start_again()
    assert "late" in runtime.shown_partitions(slurm.control.show_partitions())
    assert [job.state for job in slurm.control.jobs().values() if job.partition == "late"] == ["PENDING"]


def test_what_people_take_back_is_forgotten(cluster: tuple[Cluster, RuntimeChanges]) -> None:
    slurm, changes = cluster
    slurm.run("scontrol", "update", "PartitionName=debug", "State=UP", "AllowGroups=ALL", "MaxTime=INFINITE")
    slurm.run("scontrol", "update", "PartitionName=debug", "DefMemPerCPU=500")
    features = ("AvailableFeatures=tiny,ondemand", "ActiveFeatures=tiny,ondemand")
    slurm.run("scontrol", "update", "NodeName=debug-2", "Weight=10", *features)
    slurm.run("scontrol", "delete", "PartitionName=own")
    stop(slurm, changes)
    record = read_changes(slurm.state)
    assert record is not None
    assert (record.partitions, "own" in record.own, "debug-2" in record.nodes) == ({}, False, False)
    assert "own" not in runtime.shown_partitions(slurm.control.show_partitions())
