"""The simulated Slurm behaves as a real one: both run one scenario with the same result.

`RECORDED` is what Slurm 22.05.8 did. The second test checks it where Slurm is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.design.model import SlurmSettings
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import expand
from tests.node.slurm_cluster import WAIT_FOR_NODES, SlurmCluster, design, needs_slurm, partition
from tests.support.simulated_slurm import SimulatedSlurm
from tests.support.slurm_scenario import NODES, Bench, Scenario, Snapshot

TIMERS = SlurmSettings(suspend_time=3600, suspend_timeout=2, resume_timeout=300, slurmd_timeout=60)
RECORDED = Path(__file__).with_name("data") / "slurm-22.05-scenario.json"


class Real:
    """A bench with a real slurmctld and its own slurmds."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self.slurm: Slurm = cluster.control

    def submit(self, *, held: bool = False, array: str | None = None) -> int:
        options = [*(["--hold"] if held else []), *([f"--array={array}"] if array else [])]
        done = self._cluster.run("sbatch", "--parsable", "--exclusive", *options, "--wrap", "sleep 3600")
        return int(done.stdout.partition(";")[0])

    def suspend(self, job: int) -> None:
        self._cluster.run("scontrol", "suspend", str(job))

    def resume(self, job: int) -> None:
        self._cluster.run("scontrol", "resume", str(job))

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        self._cluster.wait(what, condition, 180)


class Simulated:
    """A bench with the model, whose nodes answer a second after they were powered up."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._up: dict[str, float] = {}
        self.model = SimulatedSlurm(
            [(name, "debug") for name in NODES], TIMERS, (), lambda: self.now, self._program, self._machine
        )
        self.slurm: Slurm = self.model

    def submit(self, *, held: bool = False, array: str | None = None) -> int:
        if array is None:
            return self.model.submit(1, 3600, held=held).id
        tasks, _, limit = array.partition("%")
        first, _, last = tasks.partition("-")
        return self.model.submit_array(range(int(first), int(last) + 1), 1, 3600, limit=int(limit)).id

    def suspend(self, job: int) -> None:
        self.model.suspend(job)

    def resume(self, job: int) -> None:
        self.model.resume(job)

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        for _ in range(120):
            self.now += 1.0
            self.model.tick()
            if condition():
                return
        raise AssertionError(f"never {what}: {self.slurm.jobs()} {self.slurm.nodes()}")

    def _program(self, request: dict[str, Any]) -> None:
        for node in expand(request["nodes"]):
            if request["program"] == "resume":
                self._up[node] = self.now + 1.0
            else:
                self._up.pop(node, None)

    def _machine(self, node: str) -> tuple[str, float] | None:
        at = self._up.get(node)
        return None if at is None or self.now < at else (f"m-{node}-{at:g}", at)


def recorded() -> list[Snapshot]:
    return [(what, jobs, nodes) for what, jobs, nodes in json.loads(RECORDED.read_text())]


def test_the_simulation_goes_through_what_slurm_went_through() -> None:
    bench: Bench = Simulated()
    for seen, wanted in zip(Scenario(bench).play(), recorded(), strict=True):
        assert seen == wanted


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster(
        design(partition(nodes=len(NODES)), slurm=TIMERS), prolog=WAIT_FOR_NODES
    ) as slurm_cluster:
        yield slurm_cluster


@pytest.mark.cluster
@needs_slurm
def test_slurm_still_does_what_was_recorded(cluster: SlurmCluster) -> None:
    bench: Bench = Real(cluster)
    for seen, wanted in zip(Scenario(bench, recorded()).play(), recorded(), strict=True):
        assert seen == wanted


def test_commands_that_mean_no_job_are_refused() -> None:
    model = Simulated().model
    model.submit_array(range(3), 1, 10)
    for name in (7, "1_7", "2_0"):
        with pytest.raises(SlurmError):
            model.update_job(name, hold=True)
    model.cancel(["1_[0-1]"])
    assert [job.spelling for job in model.jobs().values() if job.is_pending] == ["1_2"]
