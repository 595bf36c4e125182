"""Quota for 4 of 8 nodes: the other nodes get capacity drains, so jobs wait with a cause and do not flap."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.slurm.control import Control
from node.slurm.states import JobState
from node.system import rpc
from tests.support.checkout import Checkout, until
from tests.support.mishaps import pids

EIGHT = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 8}, default: true}
        slurm: {suspend_time: 2}
"""
NODES = [f"debug-{i}" for i in range(8)]


class Cluster:
    """A real cluster. Slurm is called directly: `./cluster exec` takes as long as some of its steps."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.control = Control(checkout.run_directory / "etc" / "slurm.conf")

    def limits(self, **changes: Any) -> None:
        rpc.call(str(self.checkout.run_directory / "cloud" / "agent.sock"), "limits", 10.0, **changes)

    def submit(self, *arguments: str) -> int:
        return int(self.control.run("sbatch", "--parsable", "--output=/dev/null", *arguments))

    def job(self, number: int) -> JobState:
        return self.control.jobs()[number]

    def drained(self) -> set[str]:
        return {name for name, node in self.control.nodes().items() if node.is_drained}

    def watch(self, number: int, seconds: float) -> list[str]:
        """Record the job's states; a state that lasts is recorded once."""
        seen: list[str] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.job(number).state
            if not seen or seen[-1] != state:
                seen.append(state)
            time.sleep(0.3)  # a launch that fails takes longer
        return seen


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("capacity") / "a checkout", EIGHT)
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
    made.limits(quota_nodes=None)
    made.control.cancel(job.id for job in made.control.jobs().values() if not job.is_over)
    until(lambda: not made.drained(), 120, "the end of all capacity drains")
    until(lambda: all(n.is_powered_down for n in made.control.nodes().values()), 120, "zero nodes")


def test_a_job_beyond_the_quota_waits_quietly_and_starts_when_it_is_lifted(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.limits(quota_nodes=4)
    script = f"date +%s.%N > {tmp_path}/draft; mv {tmp_path}/draft {tmp_path}/started; sleep 4"
    big = cluster.submit("-N8", "--wrap", script)
    until(lambda: cluster.job(big).restarts == 1, 120, "the refusal")
    refused = time.monotonic()
    until(lambda: 0 < len(cluster.drained()) <= 4 and _off(cluster, 8), 120, "the four released")
    released = time.monotonic() - refused

    assert "quota of 4 machines would be exceeded" in (cluster.job(big).cause or "")
    reasons = {node.reason for node in cluster.control.nodes().values() if node.is_drained}
    assert all(reason and reason.startswith("slurm-stacks quota: ") for reason in reasons)
    table = cluster.checkout.cluster("status", check=True).stdout
    assert table.count("quota of 4 machines would be exceeded") >= 2, table
    assert "drained, powered down" in table, table

    # The second job of six nodes never starts; the small one fits.
    never = cluster.submit("-N6", "--wrap", "true")
    small = cluster.submit("-N2", "--wrap", "true")
    until(lambda: cluster.job(small).state == "COMPLETED", 120, "the job that fits")
    until(lambda: "quota:" in (cluster.job(never).cause or ""), 120, "the cause of a job that never started")
    assert cluster.job(never).restarts == 0

    # Slurm's pause after the requeue ends early here, not after half a minute: the job must not start and
    # fail again.
    cluster.control.update_job(big, start_now=True)
    assert cluster.watch(big, 6) == ["PENDING"]
    assert cluster.job(big).reason != "BeginTime"
    assert cluster.job(big).restarts == 1
    cluster.limits(quota_nodes=None)
    lifted = time.time()
    until((tmp_path / "started").exists, 120, "the job's start")
    started = float((tmp_path / "started").read_text()) - lifted
    assert cluster.drained() == set()
    until(lambda: not cluster.job(big).admin_comment, 120, "no comment on a job that runs")
    until(lambda: cluster.job(never).state == "COMPLETED", 120, "the job that never had a chance")
    with capsys.disabled():
        print(f"\nreleased {released:.1f} s after the refusal; started {started:.1f} s after the quota's end")


def _off(cluster: Cluster, count: int) -> bool:
    return sum(node.is_powered_down for node in cluster.control.nodes().values()) == count


@pytest.mark.wide
def test_a_quota_that_is_lifted_soon_does_not_cost_slurms_pause(cluster: Cluster) -> None:
    cluster.limits(quota_nodes=4)
    job = cluster.submit("-N5", "--wrap", "sleep 1")
    until(lambda: len(cluster.drained()) == 4 and _off(cluster, 8), 120, "the capacity drains")
    cluster.limits(quota_nodes=None)
    begun = time.monotonic()
    # The job is short: a slow machine may only see that it is over.
    until(lambda: cluster.job(job).state not in ("PENDING", "CONFIGURING"), 120, "the start")
    until(lambda: cluster.job(job).state == "COMPLETED", 120, "its end")
    print(f"started {time.monotonic() - begun:.1f} s after the quota's end, in the pause of a requeue")


@pytest.mark.wide
def test_an_array_works_through_the_quota_and_a_killed_daemon_goes_on(cluster: Cluster) -> None:
    cluster.limits(quota_nodes=4)
    array = cluster.submit("--array=1-40", "--exclusive", "--wrap", "sleep 0.3")

    def tasks() -> list[JobState]:
        return [job for job in cluster.control.jobs().values() if job.array_job == array or job.id == array]

    until(lambda: len(cluster.drained()) == 4, 120, "the capacity drains")
    (daemon,) = pids(cluster.checkout, "elastic.daemon")
    os.kill(daemon, signal.SIGKILL)
    most = 0
    end = time.monotonic() + 240
    while any(not job.is_over for job in tasks()):
        assert time.monotonic() < end, "the array's end"
        nodes = cluster.control.nodes()
        most = max(most, sum(n.is_up for n in nodes.values()))
        time.sleep(0.2)
    assert most == 4
    assert all(job.state == "COMPLETED" for job in tasks())
    # The four refused nodes; on a slow machine a few more, because the daemon was down. None goes back and
    # forth.
    assert max(job.restarts for job in tasks()) <= 1
    assert cluster.drained(), "the quota still holds"


@pytest.mark.wide
def test_a_persons_drain_stays(cluster: Cluster) -> None:
    cluster.limits(quota_nodes=4)
    cluster.control.update_node(["debug-7"], state="DRAIN", reason="bad fan")
    cluster.submit("-N6", "--wrap", "true")
    until(lambda: len(cluster.drained()) == 4, 120, "three capacity drains and the administrator's")
    cluster.limits(quota_nodes=None)
    until(lambda: cluster.drained() == {"debug-7"}, 120, "the end of the drain")
    assert cluster.control.nodes()["debug-7"].reason == "bad fan"
    cluster.control.update_node(["debug-7"], state="RESUME")
