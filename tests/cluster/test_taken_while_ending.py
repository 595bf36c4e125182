"""Jobs that are queued again because their machine will be taken, and have not ended when it is.

slurmctld before 24.11 does not clean such a job up: its next run has no GPUs, and the GPUs that it had count
as used forever. An --exclusive job on a cluster that has GPUs elsewhere never begins (BadConstraints).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node import rpc
from tests.support.checkout import Checkout, until
from tests.support.soak.audit import leaked

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
          - {name: gpu, instance_type: local.medium, accelerator: {type: v100, count: 2}, nodes: {max: 2}}
        slurm: {suspend_time: 4}
"""


def test_a_job_that_has_not_ended_when_its_machine_is_taken_runs_again_whole(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    cluster = make_checkout(STACK)
    cluster.cluster("up", check=True)

    def submit(name: str, *options: str) -> Path:
        notes = tmp_path / name
        # The job ignores SIGTERM, so it ends 30 s later (KillWait), and its machine is gone by then.
        stays = '[ -n "$SLURM_RESTART_COUNT" ] || { trap "" TERM; while :; do sleep 1; done; }'
        script = f'echo "$SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES-none}}" >>{notes}; {stays}'
        cluster.execute("sbatch", "--output=/dev/null", *options, "--wrap", script)
        return notes

    def lines(notes: Path) -> list[str]:
        return notes.read_text().splitlines() if notes.exists() else []

    gpu = submit("gpu", "--partition=gpu", "--gpus-per-node=1")
    whole = submit("whole", "--partition=debug", "--exclusive")
    until(lambda: lines(gpu) and lines(whole), 120, "both jobs")
    for notes in (gpu, whole):
        node = lines(notes)[0].split()[0]
        socket = str(cluster.run_directory / "cloud" / "agent.sock")
        rpc.call(socket, "fault", 20.0, action="preempt", node=node, notice=3)

    until(lambda: len(lines(gpu)) == 2 and len(lines(whole)) == 2, 150, "their second runs", 0.5)
    assert [line.split()[1] for line in lines(gpu)] == ["0", "0"], "the same number of GPUs as before"
    until(lambda: not cluster.ask("squeue", "--noheader"), 120, "the end of both")
    assert leaked(cluster.ask("scontrol", "show", "nodes", "--details", "--oneliner")) == []
