"""When slurmctld is made to clean up after requeued jobs (`node.elastic.requeue_cleanup`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign
from node.elastic.client import EPILOG_SECONDS
from node.elastic.reconfiguration import Reconfiguration
from node.elastic.requeue_cleanup import PAUSE_SECONDS, RequeueCleanup
from node.slurm import hardware
from node.slurm.answers import parse_nodes
from node.slurm.hardware import Record
from node.slurm.version import cleans_up_requeued_jobs
from tests.support.doubles import DEBUG, FakeControl, design, job, node

GPU = replace(DEBUG, name="gpu", accelerator=Accelerator("v100", 2))
SILENT = node("gpu-0", "IDLE", "CLOUD", "COMPLETING", "NOT_RESPONDING")
IDLE = node("gpu-0", "IDLE", "CLOUD")
USED = replace(IDLE, gres_used=2)


@dataclass
class Cluster:
    """A daemon's cleanup, with its double of Slurm and a clock."""

    control: FakeControl
    cleanup: RequeueCleanup
    now: float = 0.0

    def reconfigured(self) -> bool:
        """Look once, and return whether Slurm was told to read its configuration."""
        self.control.calls.clear()
        self.cleanup.once()
        return ("reconfigure",) in self.control.calls


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Cluster]:
    def cluster(made: ClusterDesign | None = None, release: str = "slurm-wlm 22.05.8") -> Cluster:
        (tmp_path / hardware.RECORD).write_text(hardware.text(Record(release)))
        control = FakeControl([SILENT], [job(1, "COMPLETING", nodes=("gpu-0",))])
        made = made or design(DEBUG, GPU)
        reconfiguration = Reconfiguration(control, tmp_path)
        cleanup = RequeueCleanup(
            made, control, control.detailed_nodes, reconfiguration, tmp_path, lambda: result.now
        )
        result = Cluster(control, cleanup)
        return result

    return cluster


def test_a_job_that_ends_on_a_silent_node_gets_an_epilog_and_another_after_it(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    assert cluster.reconfigured()
    assert not cluster.reconfigured(), "the epilog runs"
    cluster.now += EPILOG_SECONDS
    assert cluster.reconfigured()
    cluster.control.queue[2] = job(2, "COMPLETING", nodes=("gpu-0",))
    assert cluster.reconfigured(), "another job"
    cluster.control.queue[2] = job(2, "COMPLETING", nodes=("gpu-0",), restarts=1)
    assert cluster.reconfigured(), "its next run"


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "CONFIGURING"])
def test_no_other_job_needs_one(make: Callable[..., Cluster], state: str) -> None:
    cluster = make()
    cluster.control.queue[1] = job(1, state, nodes=("gpu-0",))
    assert not cluster.reconfigured()


def test_nor_does_one_whose_node_answers(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.control.state["gpu-0"] = node("gpu-0", "IDLE", "CLOUD", "COMPLETING")
    assert not cluster.reconfigured()
    cluster.control.state["gpu-1"] = replace(SILENT, name="gpu-1")
    assert not cluster.reconfigured(), "another node is silent"


def test_gpus_in_use_without_a_job_are_counted_again(
    make: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make()
    cluster.control.queue.clear()
    cluster.control.state["gpu-0"] = USED
    assert not cluster.reconfigured(), "one look is not enough"
    assert cluster.reconfigured()
    assert capsys.readouterr().out.endswith("it counted accelerators of gpu-0 as used\n")
    cluster.now += PAUSE_SECONDS - 1
    assert not cluster.reconfigured()
    cluster.now += 1
    assert cluster.reconfigured(), "it did not help"
    cluster.control.state["gpu-0"] = IDLE
    cluster.now += PAUSE_SECONDS
    assert not cluster.reconfigured()
    assert not cluster.reconfigured()


def test_gpus_of_a_job_are_in_use(make: Callable[..., Cluster]) -> None:
    """A node whose only job is suspended is idle in Slurm."""
    cluster = make()
    cluster.control.queue[1] = job(1, "SUSPENDED", nodes=("gpu-0",))
    for state in (USED, replace(USED, base="MIXED"), replace(USED, flags=frozenset({"COMPLETING"}))):
        cluster.control.state["gpu-0"] = state
        assert [cluster.reconfigured() for _ in range(3)] == [False] * 3


def test_nothing_is_asked_where_slurm_cleans_up_itself(make: Callable[..., Cluster]) -> None:
    assert not make(release="slurm 24.11.5").reconfigured()
    assert not make(design(DEBUG)).reconfigured(), "no accelerators"


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("slurm-wlm 22.05.8", False),
        ("slurm-wlm 23.11.4", False),
        ("slurm 23.11.11", True),
        ("24.05.5", False),
        ("24.05.8", True),
        ("24.11", False),
        ("24.11.0", False),
        ("24.11.1", True),
        ("slurm 25.05.0", True),
        ("26.05.5", True),
        ("23.02.8", False),
        ("", False),
    ],
)
def test_releases(release: str, expected: bool) -> None:
    assert cleans_up_requeued_jobs(release) is expected


@pytest.mark.parametrize(
    ("used", "count"),
    [
        ("gpu:v100:2(IDX:0-1)", 2),
        ("gpu:v100:0(IDX:N/A)", 0),
        ("gpu:a100:2(IDX:0,3),gpu:t4:1(IDX:0),neuron:4", 7),
        ("gpu:0", 0),
        ("(null)", 0),
    ],
)
def test_what_is_in_use_is_read(used: str, count: int) -> None:
    line = f"NodeName=gpu-0 Gres=gpu:v100:8(S:0-1) GresUsed={used} State=IDLE+CLOUD OS=Linux Reason=a:3"
    assert parse_nodes(line)["gpu-0"].gres_used == count
