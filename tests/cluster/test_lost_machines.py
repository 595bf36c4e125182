"""Machines that are lost under real jobs, and killed daemons: what follows, and how soon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.slurm import version
from node.system import rpc
from tests.support.checkout import Checkout, running, until
from tests.support.mishaps import end, pids, until_saved

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 6}, default: true}
        slurm: {suspend_time: 4}
"""
AGAIN_SECONDS = 120.0
"""The limit from a machine's death to its job's next start. On an idle host a minute is promised."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with running(tmp_path_factory.mktemp("lost") / "a checkout", STACK) as checkout:
        yield checkout


class Job:
    """A job that waits on its first start, and records when and where it starts.

    Args:
        again: what the script does on all later starts.
        first: what the script does on its first start.
    """

    def __init__(
        self,
        cluster: Checkout,
        folder: Path,
        name: str,
        *options: str,
        first: str = "sleep 600",
        again: str = "true",
    ) -> None:
        self._cluster = cluster
        self._notes = folder / name
        work = f'if [ -n "$SLURM_RESTART_COUNT" ]; then {again}; else {first}; fi'
        script = f"echo $(date +%s.%N) $SLURMD_NODENAME >>{self._notes}; {work}"
        self.id = cluster.execute(
            "sbatch", "--parsable", "--exclusive", "--output=/dev/null", *options, "--wrap", script
        ).strip()

    def starts(self) -> list[tuple[float, str]]:
        if not self._notes.exists():
            return []
        words = (line.split() for line in self._notes.read_text().splitlines())
        return [(float(moment), node) for moment, node in words]

    def until_started(self, times: int = 1, seconds: float = 120) -> tuple[float, str]:
        until(lambda: len(self.starts()) >= times, seconds, f"start {times} of job {self.id}")
        return self.starts()[times - 1]

    def fields(self) -> dict[str, str]:
        text = self._cluster.ask("scontrol", "--oneliner", "show", "job", self.id)
        return dict(pair.split("=", 1) for pair in text.split(" ") if "=" in pair)

    def state(self) -> str:
        return self.fields()["JobState"]


def fault(cluster: Checkout, action: str, node: str, **more: Any) -> None:
    call(cluster, "fault", action=action, node=node, **more)


def call(cluster: Checkout, method: str, **parameters: Any) -> Any:
    return rpc.call(str(cluster.run_directory / "cloud" / "agent.sock"), method, 20.0, **parameters)


def machines(cluster: Checkout) -> dict[str, str]:
    """Return node -> id of the living machines."""
    records = json.loads((cluster.run_directory / "cloud" / "machines.json").read_text())["machines"]
    return {m["node"]: m["id"] for m in records if m["state"] == "running"}


def nodes(cluster: Checkout) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in cluster.status()["nodes"]}


def test_jobs_of_machines_that_die_or_are_taken_run_again(cluster: Checkout, tmp_path: Path) -> None:
    """All of this happens at once: one machine's fault must not delay the others."""
    names = ("killed", "taken", "last")
    jobs = {name: Job(cluster, tmp_path, name) for name in names[:2]}
    jobs["last"] = Job(cluster, tmp_path, "last", "--no-requeue")
    at = {name: jobs[name].until_started()[1] for name in names}
    idle = cluster.execute("srun", "--exclusive", "printenv", "SLURMD_NODENAME").strip()
    before = machines(cluster)
    began = time.time()
    # Slurm gives this job a node whose machine is gone, and tries for 11 s to start it there. The failure of
    # that try must not hit the job's next run. (A slow machine may know of the node's death before.)
    fault(cluster, "kill", idle)
    late = Job(cluster, tmp_path, "late", first="sleep 8", again="sleep 8")
    fault(cluster, "preempt", at["taken"], notice=25)
    fault(cluster, "preempt", at["last"], notice=25)
    fault(cluster, "kill", at["killed"])

    seconds = {}
    for name in ("taken", "killed"):
        moment, node = jobs[name].until_started(2, AGAIN_SECONDS)
        seconds[name] = moment - began
        assert node != at[name] or machines(cluster).get(node) != before[node]
        assert jobs[name].fields()["Restarts"] == "1"
    assert at["taken"] != jobs["taken"].starts()[1][1], "the node takes no job any more"
    assert jobs["last"].state() in ("RUNNING", "COMPLETING", "NODE_FAIL"), "it may not be queued again"
    until(lambda: before[at["taken"]] not in machines(cluster).values(), 120, "the taken machine's end")
    until(lambda: jobs["last"].state() == "NODE_FAIL", 120, "the end of the job that must not run again")

    until(lambda: late.state() == "COMPLETED", 120, "the job that came to a machine that had died")
    assert len(late.starts()) == 1

    until(lambda: set(_states(cluster)) == {"idle~"}, 120, "nodes without a trace of it")
    print({name: f"{value:.1f} s" for name, value in seconds.items()})


def _states(cluster: Checkout) -> list[str]:
    return cluster.ask("sinfo", "--noheader", "--Node", "--format=%T").split()


def test_the_cause_is_on_the_job_and_on_the_node(cluster: Checkout, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "told")
    node = job.until_started()[1]
    # Both vanish soon, with the node and with the job's next start. slurmctld's log and the node's history
    # keep them.
    log = cluster.run_directory / "log" / "slurmctld.log"
    before = len(log.read_text())
    fault(cluster, "preempt", node, notice=60)
    taken = "preempted: the cloud takes this machine at .* UTC"
    again = rf"\({node}\); the job is queued again by itself"
    of_job = rf"setting admin_comment to {taken} {again}.* for JobId={job.id}\b"
    of_node = rf"update_node: node {node} reason set to: slurm-stacks {taken}"
    for words in (of_job, of_node):
        until(lambda wanted=words: re.search(wanted, log.read_text()[before:]), 120, words)  # type: ignore[misc]
    job.until_started(2, AGAIN_SECONDS)

    def told() -> list[dict[str, Any]]:
        with contextlib.suppress(AssertionError):  # the daemon may be away
            return [c for c in nodes(cluster)[node]["changes"] if re.search(taken, c["reason"] or "")]
        return []

    until(told, 120, "the history of the node")
    assert told()[0]["machine"] == "noticed"
    assert re.search(rf"machine noticed +slurm-stacks {taken}", cluster.cluster("logs", node).stdout)
    assert all(step["error"] is None for step in cluster.status()["steps"])
    (daemon,) = pids(cluster, "elastic.daemon")
    os.kill(daemon, signal.SIGKILL)
    until(lambda: pids(cluster, "elastic.daemon") not in ([], [daemon]), 120, "the next daemon")
    until(told, 120, "what it has read of the history")


def test_a_job_goes_on_while_slurmctld_is_killed_and_comes_back(cluster: Checkout, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "goes-on")
    _, node = job.until_started()
    # Slurm calls a resumed node that is off NOT_RESPONDING, and forgets that at slurmctld's next start.
    (spare, *_) = [
        name for name, one in nodes(cluster).items() if name != node and "POWERED_DOWN" in one["state"]
    ]
    cluster.execute("scontrol", "update", f"NodeName={spare}", "State=DRAIN", "Reason=disk swap")
    cluster.execute("scontrol", "update", f"NodeName={spare}", "State=RESUME")
    until_saved(cluster)
    (machine,) = (i for n, i in machines(cluster).items() if n == node)
    end(pids(cluster, "/usr/sbin/slurmctld\0")[0])
    until(lambda: cluster.execute("scontrol", "ping", check=False).count("is UP"), 120, "slurmctld")
    # Some passes of the daemon see nodes that have not all registered again.
    time.sleep(10)
    assert job.state() == "RUNNING"
    assert machines(cluster)[node] == machine
    assert len(job.starts()) == 1
    cluster.execute("scancel", job.id)
    assert len(cluster.execute("srun", "-N6", "--exclusive", "hostname", timeout=150).split()) == 6


def test_a_job_goes_on_when_slurmctld_is_killed_soon_after_its_boot(
    cluster: Checkout, tmp_path: Path
) -> None:
    """By default slurmctld saves only after minutes that the node came up and the job began."""
    until(lambda: set(_states(cluster)) == {"idle~"}, 60, "zero nodes")
    # slurmctld saves everything within five seconds after a submission. This waits longer.
    call(cluster, "limits", boot_delay=8)
    try:
        job = Job(cluster, tmp_path, "begun")
        _, node = job.until_started()
    finally:
        call(cluster, "limits", boot_delay=0)
    try:
        # Slurm's own time is used: on a busy machine all may be saved before the script's first line.
        began = float(job.fields()["StartTime"])
        for name in ("job_state", "node_state"):
            file = cluster.run_directory / "state" / name
            until(lambda file=file: file.stat().st_mtime > began, 60, f"{name} on the disk")  # type: ignore[misc]
        end(pids(cluster, "/usr/sbin/slurmctld\0")[0])
        until(lambda: cluster.execute("scontrol", "ping", check=False).count("is UP"), 60, "slurmctld")
        assert job.state() == "RUNNING", "and not CONFIGURING, to be started once more"
        assert "POWERING_UP" not in nodes(cluster)[node]["state"], "it would never be heard again"
        assert len(job.starts()) == 1
    finally:
        cluster.execute("scancel", job.id)


def test_a_daemon_that_is_killed_in_the_middle_of_a_launch(cluster: Checkout, tmp_path: Path) -> None:
    """The next daemon finds the launched machines in the cloud's list, and launches none twice."""
    until(lambda: set(_states(cluster)) == {"idle~"}, 120, "zero nodes")
    call(cluster, "limits", boot_delay=5, api_latency=1)
    try:
        job = Job(cluster, tmp_path, "launched", "-N2")
        log = cluster.run_directory / "log" / "elastic.log"
        before = log.read_text().count("resume debug-")
        until(lambda: log.read_text().count("resume debug-") > before, 120, "the request", 0.02)
        time.sleep(1.0)
        (daemon,) = pids(cluster, "elastic.daemon")
        os.kill(daemon, signal.SIGKILL)
        job.until_started(1, 120)
        assert len(machines(cluster)) == 3, "the head's and the job's"
    finally:
        call(cluster, "limits", boot_delay=0, api_latency=0)
        cluster.execute("scancel", job.id)


def test_a_job_that_asks_for_a_reboot_gets_another_machine_and_nobody_notices(
    cluster: Checkout, tmp_path: Path
) -> None:
    """Slurm before 23.02 calls ResumeProgram for a node that is up, and newer ones ignore the option."""
    node = cluster.execute("srun", "--exclusive", "printenv", "SLURMD_NODENAME").strip()
    beside = Job(cluster, tmp_path, "beside", "--no-requeue", f"--exclude={node}", first="sleep 20")
    beside.until_started()
    former = machines(cluster)[node]
    job = Job(cluster, tmp_path, "reboot", "--no-requeue", "--reboot", f"--nodelist={node}", first="true")
    seen: set[str] = set()

    def over() -> bool:
        seen.update(state for name, state in _states_by_node(cluster).items() if name != node)
        return job.state() == "COMPLETED"

    until(over, 120, "the job's end")
    assert not [state for state in seen if state.startswith("dr")], "the other nodes are as they were"
    if version.parse(cluster.ask("sinfo", "--version")) < (23, 2):
        assert machines(cluster)[node] != former

    # `scontrol reboot` waits for a job, and the node's next job has another machine.
    busy = Job(cluster, tmp_path, "busy", "--no-requeue", f"--nodelist={node}", first="sleep 5")
    busy.until_started()
    former = machines(cluster)[node]
    cluster.ask("scontrol", "reboot", "ASAP", node)
    until(lambda: former not in machines(cluster).values(), 120, "the end of the machine")
    assert busy.state() == "COMPLETED"
    cluster.execute("srun", f"--nodelist={node}", "true")
    assert machines(cluster)[node] != former
    until(lambda: beside.state() == "COMPLETED", 120, "the job beside")


def _states_by_node(cluster: Checkout) -> dict[str, str]:
    return dict(
        line.split() for line in cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    )
