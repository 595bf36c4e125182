"""A partition with a spot pool and one on demand: who refuses what, and where jobs go on a real cluster."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from node.slurm.control import Control
from node.slurm.states import JobState
from node.system import rpc
from tests.support.checkout import Checkout, until
from tests.support.mishaps import pids

POOLS = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - name: train
            instance_type: local.small
            nodes: {max: 3}
            default: true
            pools:
              - {name: spot, spot: true}
              - {name: ondemand}
        slurm: {suspend_time: 3}
      slurm-stacks:benchmark: {enabled: false}
"""
SPOT, ONDEMAND = ([f"train-{pool}-{n}" for n in range(3)] for pool in ("spot", "ondemand"))
SECONDS = 120


class Cluster:
    """A real cluster. Slurm is called directly: `./cluster exec` takes as long as some of its steps."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.control = Control(checkout.run_directory / "etc" / "slurm.conf")

    def cloud(self, method: str, **changes: Any) -> Any:
        return rpc.call(str(self.checkout.run_directory / "cloud" / "agent.sock"), method, 10.0, **changes)

    def capacity(self, **pools: int | None) -> None:
        self.cloud("limits", **{f"capacity.train/{name}": count for name, count in pools.items()})

    def submit(self, *arguments: str, script: str = "sleep 1") -> int:
        options = ("--parsable", "--output=/dev/null", *arguments, "--wrap", script)
        return int(self.control.run("sbatch", *options))

    def job(self, number: int) -> JobState:
        return self.control.jobs()[number]

    def runs(self, number: int, *, restarts: int = 0) -> set[str]:
        """Wait until a job runs, or is over, and return the pools of its nodes."""
        until(lambda: _runs(self.job(number), restarts), SECONDS, f"job {number} to run")
        return {node.rpartition("-")[0] for node in self.job(number).nodes}

    def waits(self, number: int, *words: str) -> None:
        """Wait until a job is pending with these words as its cause."""

        def told() -> bool:
            job = self.job(number)
            return job.is_pending and all(word in (job.admin_comment or "") for word in words)

        until(told, SECONDS, f"job {number} to wait because of {words}")

    def log(self) -> str:
        return (self.checkout.run_directory / "log" / "elastic.log").read_text()

    def drained(self) -> set[str]:
        return {name for name, node in self.control.nodes().items() if node.is_drained}


def _runs(job: JobState, restarts: int) -> bool:
    return job.restarts >= restarts and (job.is_running or job.is_over)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("pools") / "a checkout", POOLS)
    try:
        made.cluster("up", check=True)
        yield made
    finally:
        left = made.close()
    assert left == []


@pytest.fixture
def cluster(checkout: Checkout) -> Iterator[Cluster]:
    """The cluster, without jobs and limits after each test: a failed test must not affect the next."""
    made = Cluster(checkout)
    yield made
    made.cloud("limits", api_error=None)
    made.capacity(spot=None, ondemand=None)
    made.control.cancel(job.id for job in made.control.jobs().values() if not job.is_over)
    until(lambda: not made.drained(), SECONDS, "the end of all capacity drains")
    until(lambda: all(n.is_powered_down for n in made.control.nodes().values()), SECONDS, "zero nodes")


def moment(log: str, words: str) -> float:
    """Return when the daemon's log last told of something."""
    (*_, found) = re.finditer(rf"^(\S+Z) .*{re.escape(words)}", log, re.MULTILINE)
    return datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def test_a_job_goes_whole_to_the_next_pool_and_nobody_submits_it_again(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first pool has one machine of two. What is bound to it waits with its cause."""
    cluster.capacity(spot=1)
    job = cluster.submit("-N2")
    assert cluster.runs(job) == {"train-ondemand"}
    took = moment(cluster.log(), "launched train-ondemand-") - moment(cluster.log(), "launched nothing")
    with capsys.disabled():
        print(f"\nthe second launch came {took:.0f} s after the refusal")

    bound = cluster.submit("-N2", "--constraint=spot")
    cluster.waits(bound, "capacity: spot: pool train/spot has 1 machine")
    (shown,) = [one for one in cluster.checkout.status()["jobs"] if one["id"] == bound]
    assert "capacity: spot: " in shown["cause"]
    assert cluster.runs(cluster.submit("-N1", "--constraint=spot")) == {"train-spot"}, "one machine is there"


@pytest.mark.wide
def test_a_job_waits_with_both_causes_until_either_pool_has_machines(cluster: Cluster) -> None:
    cluster.capacity(spot=0, ondemand=0)
    job = cluster.submit("-N2")
    cluster.waits(job, "spot: pool train/spot has 0", "ondemand: pool train/ondemand has 0")
    cluster.capacity(ondemand=2)
    assert cluster.runs(job) == {"train-ondemand"}
    array = cluster.submit("--array=1-6", "--exclusive")
    until(
        lambda: all(j.is_over for j in cluster.control.jobs().values() if array in (j.id, j.array_job)),
        SECONDS,
        "the array's end",
    )


@pytest.mark.wide
def test_a_mistake_moves_no_job_to_the_next_pool_and_a_killed_daemon_goes_on(cluster: Cluster) -> None:
    cluster.cloud("limits", api_error="config")
    job = cluster.submit("-N2")
    cluster.waits(job, "config: spot: the request is not valid")
    until(lambda: cluster.drained() == {*SPOT, *ONDEMAND}, SECONDS, "both pools to be drained")
    (daemon,) = pids(cluster.checkout, "elastic.daemon")
    os.kill(daemon, signal.SIGKILL)
    until(lambda: pids(cluster.checkout, "elastic.daemon") not in ([], [daemon]), SECONDS, "another daemon")
    until(lambda: cluster.log().count("serves test") == 2, SECONDS, "its start")
    assert cluster.job(job).is_pending
    assert cluster.drained() == {*SPOT, *ONDEMAND}
    # Slurm gives no job a node that goes off: until then it would choose the next pool.
    until(
        lambda: all(cluster.control.nodes()[node].is_off for node in SPOT), SECONDS, "spot nodes that are off"
    )
    cluster.cloud("limits", api_error=None)
    assert cluster.runs(job) == {"train-spot"}


@pytest.mark.wide
def test_spot_machines_that_are_taken_back_twice_soon_are_followed_by_others(cluster: Cluster) -> None:
    """The second time is a minute after the first: what is taken together is one event."""
    job = cluster.submit("-N2", script="sleep 600")
    first = time.time()
    for restarts in range(2):
        assert cluster.runs(job, restarts=restarts) == {"train-spot"}
        until(lambda n=restarts: time.time() - first > 70 * n, SECONDS, "a minute after the first")  # type: ignore[misc]
        cluster.cloud("fault", action="preempt", node=cluster.job(job).nodes[0], notice=5.0)
    assert cluster.runs(job, restarts=2) == {"train-ondemand"}
    closed = "slurm-stacks interrupted: spot machines were taken back twice"
    until(
        lambda: all((cluster.control.nodes()[node].reason or "").startswith(closed) for node in SPOT),
        SECONDS,
        "the closed pool",
    )
    bound = cluster.submit("-N1", "--constraint=spot")
    cluster.waits(bound, "interrupted: spot: ", "until ")
    cluster.control.update_node(SPOT, state="UNDRAIN")
