"""Jobs that are queued again because their machine is lost or will be, and have not ended when it is.

slurmctld before 24.11.1 does not clean such a job up: its next run has no GPUs, and the GPUs that it had
count as used forever. An --exclusive job on a cluster that has GPUs elsewhere never begins (BadConstraints).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from node.slurm.answers import parse_nodes
from node.slurm.version import cleans_up_requeued_jobs
from node.system import rpc
from tests.support.checkout import Checkout, until
from tests.support.mishaps import pids
from tests.support.soak.audit import leaked

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
          - {name: gpu, instance_type: local.medium, accelerator: {type: v100, count: 2}, nodes: {max: 2}}
          - {name: lost, instance_type: local.medium, accelerator: {type: v100, count: 2}, nodes: {max: 2}}
        slurm: {suspend_time: 4, slurmd_timeout: 25}
"""


def test_a_job_that_has_not_ended_when_its_machine_is_taken_runs_again_whole(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    cluster = make_checkout(STACK)
    cluster.cluster("up", check=True)

    def submit(name: str, *options: str, stays: str = "") -> Path:
        notes = tmp_path / name
        script = f'echo "$SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES-none}}" >>{notes}; {stays}'
        cluster.execute("sbatch", f"--job-name={name}", "--output=/dev/null", *options, "--wrap", script)
        return notes

    def lines(notes: Path) -> list[str]:
        return notes.read_text().splitlines() if notes.exists() else []

    def fault(action: str, notes: Path, **options: int) -> None:
        socket = str(cluster.run_directory / "cloud" / "agent.sock")
        rpc.call(socket, "fault", 20.0, action=action, node=lines(notes)[0].split()[0], **options)

    # The jobs ignore SIGTERM, so they end 30 s later (KillWait), and their machines are gone by then.
    stays = '[ -n "$SLURM_RESTART_COUNT" ] || { trap "" TERM; while :; do sleep 1; done; }'
    gpu = submit("gpu", "--partition=gpu", "--gpus-per-node=1", stays=stays)
    whole = submit("whole", "--partition=debug", "--exclusive", stays=stays)
    # This machine freezes, and then Slurm launches another job on it: slurmctld queues that one again when
    # the launch fails, and kills its epilog at once.
    first = submit("first", "--partition=lost", "--gpus-per-node=1", "--no-requeue", stays="sleep 600")
    until(lambda: lines(gpu) and lines(whole) and lines(first), 120, "the jobs")
    fault("freeze", first)
    second = submit("second", "--partition=lost", "--gpus-per-node=1", stays="")
    for notes in (gpu, whole):
        fault("preempt", notes, notice=3)
    states = ("squeue", "--noheader", "--format=%j %T")
    until(lambda: "whole COMPLETING" in cluster.ask(*states), 60, "a job that ends")
    # Their epilogs, on releases that need them, wait for the daemon's word.
    (daemon,) = pids(cluster, "elastic.daemon")
    os.kill(daemon, signal.SIGKILL)

    until(lambda: len(lines(gpu)) == 2 and len(lines(whole)) == 2, 150, "their second runs")
    assert [line.split()[1] for line in lines(gpu)] == ["0", "0"], "the same number of GPUs as before"
    until(lambda: not cluster.ask("squeue", "--noheader"), 120, "the end of all")
    assert [line.split()[1] for line in lines(second)] == ["0"], "its first run never began"
    log = (cluster.run_directory / "log" / "elastic.log").read_text()
    assert "whose node is silent" in log or cleans_up_requeued_jobs(cluster.ask("scontrol", "--version"))
    assert leaked(parse_nodes(cluster.ask("scontrol", "show", "nodes", "--details", "--oneliner"))) == []
