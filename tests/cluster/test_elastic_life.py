"""The life of a cluster: from zero nodes, through jobs, back to zero, and away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localcloud.machines import MACHINE_VARIABLE
from node.system.processes import with_environment
from tests.support import published_script
from tests.support.checkout import ROOT, Checkout, until
from tests.support.mishaps import pids

GPU = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 3}, default: true}
          - name: gpu
            instance_type: local.medium
            accelerator: {type: v100, count: 4}
            nodes: {min: 1, max: 2}
        slurm: {suspend_time: 4}
"""


DAEMONS = (
    "localcloud.agent",
    "--role\0controller",
    "/usr/sbin/munged",
    "/usr/sbin/slurmctld\0",
    "elastic.daemon",
)
"""The processes that live as long as the cluster, each by a part of its command line."""


def states(checkout: Checkout) -> set[str]:
    return set(checkout.ask("sinfo", "--noheader", "--Node", "--format=%T").split())


def running() -> str:
    """Return the command lines of all processes."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(file.read_bytes().decode(errors="replace"))
    return "\n".join(lines)


def job_state(checkout: Checkout, job: str) -> str:
    # scontrol is used, because squeue forgets jobs that are over.
    text = checkout.ask("scontrol", "--oneliner", "show", "job", job)
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)["JobState"]


@contextlib.contextmanager
def held(file: Path) -> Iterator[str]:
    """Yield shell code that waits while this file is there, which is at most until the end of the block."""
    file.touch()
    try:
        yield f"while [ -e '{file}' ]; do sleep 0.1; done"
    finally:
        file.unlink(missing_ok=True)


def with_up(checkout: Checkout, count: int) -> dict[str, Any] | None:
    """Return the status once this number of nodes is up; otherwise `None`."""
    status = checkout.status()
    return status if [p["up"] for p in status["partitions"]] == [count] else None


def test_jobs_bring_nodes_up_and_the_end_of_work_takes_them_away(cluster: Checkout, tmp_path: Path) -> None:
    until(lambda: states(cluster) == {"idle~"}, 120, "a cluster without nodes")
    assert cluster.status()["machines"] == {"running": 0, "pending": 0}

    names = ["debug-0", "debug-1", "debug-2"]
    with held(tmp_path / "hold") as wait, ThreadPoolExecutor() as pool:
        output = pool.submit(cluster.execute, "srun", "-N3", "sh", "-c", f"echo $SLURMD_NODENAME; {wait}")
        status = until(lambda: with_up(cluster, 3), 120, "three nodes")
        assert status["machines"]["running"] == 3
        assert sorted(n["name"] for n in status["nodes"] if n["machine_state"] == "running") == names
        (tmp_path / "hold").unlink()
        assert sorted(output.result().split()) == names

    out = tmp_path / "out"
    job = cluster.execute(
        "sbatch", "--parsable", "-N2", f"--output={out}", "--wrap", "srun hostname; exit 0"
    ).strip()
    until(lambda: job_state(cluster, job) == "COMPLETED", 120, "the batch job")
    assert len(out.read_text().split()) == 2
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    until(lambda: cluster.status()["machines"]["running"] == 0, 120, "zero machines")
    assert cluster.status()["cost"]["node_hours"] > 0


def test_a_jobs_own_processes_end_with_its_machine(cluster: Checkout) -> None:
    """What a job leaves behind in the background must not outlive the node."""
    mark = f"{os.getpid()}.25"
    cluster.execute(
        "srun", "-N1", "sh", "-c", f"setsid sleep 98{mark} >/dev/null 2>&1 </dev/null & sleep 0.2"
    )

    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    until(lambda: f"98{mark}\0" not in running(), 120, "the job's process")


def test_exec_passes_input_output_and_status(cluster: Checkout) -> None:
    done = cluster.cluster("exec", "--", "sh", "-c", "cat; echo problem >&2; exit 7", stdin="some text")
    assert (done.stdout, done.returncode) == ("some text", 7)
    assert "problem" in done.stderr
    assert cluster.cluster("exec", "--", "no-such-command").returncode == 127
    assert "ClusterName" in cluster.execute("scontrol", "show", "config")


# By default test_container_cluster.py runs the same script where users log in, on machines that boot.
@pytest.mark.wide
def test_the_published_script_runs_as_the_page_says(cluster: Checkout, tmp_path: Path) -> None:
    published_script.check(cluster, lambda number: job_state(cluster, number), {"HOME": str(tmp_path)})


def test_a_second_up_changes_nothing_and_runs_nothing(cluster: Checkout) -> None:
    before = {program: pids(cluster, program) for program in DAEMONS}
    again = cluster.cluster("up", check=True)
    assert "nothing to do" in again.stderr
    assert "created" not in again.stderr
    assert "updated" not in again.stderr
    assert {program: pids(cluster, program) for program in DAEMONS} == before
    assert all(before.values()), before


def test_a_lost_request_is_found_when_the_daemon_is_back(cluster: Checkout) -> None:
    """The daemon is killed as a job is submitted: init starts it again, and the node still comes."""
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    (daemon,) = pids(cluster, "elastic.daemon")
    os.kill(daemon, signal.SIGKILL)
    job = cluster.execute("sbatch", "--parsable", "--output=/dev/null", "--wrap", "true").strip()
    until(lambda: job_state(cluster, job) == "COMPLETED", 120, "the job")


@pytest.mark.wide
def test_a_machine_that_dies_gives_its_job_back(cluster: Checkout, tmp_path: Path) -> None:
    """Only its first process is killed. The rest of the machine, including the job, must end with it."""
    first = f"sleep 3003.{os.getpid()}"
    script = f'echo $SLURM_RESTART_COUNT >> {tmp_path}/starts; [ -n "$SLURM_RESTART_COUNT" ] || {first}'
    job = cluster.execute("sbatch", "--parsable", "--output=/dev/null", "--wrap", script).strip()
    until((tmp_path / "starts").exists, 120, "the first start")
    # The job's own node is read, because the node of the previous test may still be ending.
    node = cluster.ask("squeue", "--noheader", "--format=%N", f"--jobs={job}").strip()
    (machine,) = [m for m in _machines(cluster) if m["state"] == "running" and m["node"] == node]
    os.kill(machine["process"]["pid"], signal.SIGKILL)
    until(lambda: with_environment(MACHINE_VARIABLE, machine["id"]) == [], 120, "the rest of the machine")
    until(lambda: first.replace(" ", "\0") + "\0" not in running(), 120, "the job's process")
    until(lambda: len((tmp_path / "starts").read_text().splitlines()) == 2, 150, "the second start")
    until(lambda: job_state(cluster, job) == "COMPLETED", 120, "the job's end")
    assert (tmp_path / "starts").read_text().splitlines() == ["", "1"]


def _machines(checkout: Checkout) -> list[dict[str, Any]]:
    content = json.loads((checkout.run_directory / "cloud" / "machines.json").read_text())
    return list(content["machines"])


@pytest.mark.wide
def test_static_nodes_and_simulated_gpus(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(GPU)
    checkout.cluster("up", check=True)
    until(lambda: checkout.status()["partitions"][1]["up"] == 1, 120, "the static node")
    seen = checkout.execute(
        "srun",
        "-p",
        "gpu",
        "-N1",
        "--gres=gpu:4",
        "sh",
        "-c",
        "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $SLURM_JOB_GPUS",
    )
    assert seen.split()[0] == "gpu-0"
    assert "gpu:v100:4" in checkout.execute("scontrol", "show", "node", "gpu-1")
    refused = checkout.cluster("exec", "--", "srun", "-p", "gpu", "--gres=gpu:5", "true")
    assert refused.returncode != 0


@pytest.mark.wide
def test_down_in_the_middle_of_a_job_leaves_nothing(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout()
    assert checkout.cluster("status").returncode == 1, "not up yet"
    checkout.cluster("up", check=True)
    checkout.execute("sbatch", "--output=/dev/null", "-N2", "--wrap", "srun sleep 300")
    until(lambda: checkout.status()["machines"]["running"] == 2, 120, "two machines")
    down = checkout.cluster("down", check=True)
    assert "nothing is left" in down.stderr
    assert checkout.processes() == []
    assert not checkout.run_directory.exists()
    again = checkout.cluster("down", check=True)
    assert "nothing is left" in again.stderr
    status = checkout.cluster("status")
    assert (status.returncode, status.stdout) == (1, "")
    assert "./cluster up" in status.stderr


@pytest.mark.wide
def test_quota_takes_no_part_of_a_job_and_says_why(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(
        """
        config:
          slurm-stacks:cluster:
            provider: local
            local: {quota_nodes: 2}
            partitions:
              - {name: debug, instance_type: local.small, nodes: {max: 6}}
            slurm: {suspend_time: 4}
        """
    )
    checkout.cluster("up", check=True)
    job = checkout.execute("sbatch", "--parsable", "--output=/dev/null", "-N4", "--wrap", "true").strip()

    def cause() -> str:
        (entry,) = [j for j in checkout.status()["jobs"] if j["id"] == int(job)]
        return entry["cause"] or ""

    until(lambda: "quota of 2 machines would be exceeded" in cause(), 120, "the cause")
    assert all(m["state"] == "terminated" for m in _machines(checkout) if m["tags"]["role"] == "compute")
    until(lambda: states(checkout) == {"idle~", "drained~"}, 120, "as many nodes free as the quota allows")
    assert "QuotaExceeded" in checkout.execute("scontrol", "show", "job", job)
    # Jobs that fit the quota run meanwhile.
    assert len(checkout.execute("srun", "-N2", "hostname").split()) == 2


@pytest.mark.wide
def test_a_change_of_the_stack_is_applied_while_a_job_runs(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    checkout = make_checkout()
    checkout.cluster("up", check=True)
    with held(tmp_path / "hold") as wait:
        job = checkout.execute("sbatch", "--parsable", "--output=/dev/null", "--wrap", wait).strip()
        until(lambda: job_state(checkout, job) == "RUNNING", 120, "the job")
        checkout.write_stack(
            """
            config:
              slurm-stacks:cluster:
                provider: local
                partitions:
                  - {name: debug, instance_type: local.small, nodes: {max: 12}, default: true}
                slurm: {suspend_time: 4}
            """
        )
        changed = checkout.cluster("up", check=True)
        assert "updated" in changed.stderr
        assert checkout.status()["partitions"][0]["max"] == 12
        assert job_state(checkout, job) == "RUNNING"
    until(lambda: job_state(checkout, job) == "COMPLETED", 120, "the job's end")
    until(lambda: states(checkout) == {"idle~"}, 120, "zero nodes")


def test_the_pages_hooks_run_on_the_node_and_a_failing_one_keeps_it_out(
    make_checkout: Callable[..., Checkout],
) -> None:
    """The hooks that docs/hooks.md shows first, as they stand there."""
    shown = re.search(r"```yaml\n(hooks:.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.DOTALL)
    assert shown is not None
    stack = """
        config:
          slurm-stacks:cluster:
            provider: local
            partitions:
              - {name: debug, instance_type: local.small, nodes: {max: 2}}
            slurm: {suspend_time: 4}
    """
    checkout = make_checkout(textwrap.dedent(stack) + textwrap.indent(shown[1], "    "))
    shutil.copytree(ROOT / "examples", checkout.folder / "examples")
    hook = checkout.folder / "examples" / "hooks" / "facts.sh"
    checkout.cluster("up", check=True)
    assert checkout.execute("srun", "-N1", "hostname").strip() == "debug-0"
    report = checkout.run_directory / "bucket" / "boot" / "debug-0.json"
    (step,) = [step for step in json.loads(report.read_text())["steps"] if step["name"] == "hooks"]
    assert (step["state"], step["note"]) == ("done", "ran 2")
    first, boots, facts, second, inline = step["tail"]
    assert first.startswith("hook 0 (examples/hooks/facts.sh) took ")
    assert boots == "facts: debug-0 boots as compute"
    assert re.fullmatch(r"facts: \d+ CPUs, \d+ MiB of memory", facts)
    assert second.startswith("hook 1 (script) took ")
    assert inline == "the first argument is inline"
    output = checkout.cluster("logs", "debug-0", check=True).stdout
    assert f"    {inline}\n" in output.partition("==> hook")[0], "in the boot report"
    assert inline in output.partition("==> hook")[2], "in its log"
    hook.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    checkout.cluster("up", check=True)
    until(lambda: states(checkout) == {"idle~"}, 120, "zero nodes")
    checkout.execute("sbatch", "--output=/dev/null", "--wrap", "true")
    until(lambda: json.loads(report.read_text())["state"] == "failed", 120, "the failed boot")
    step = json.loads(report.read_text())["steps"][-1]
    assert (step["name"], step["state"]) == ("hooks", "failed")
    assert step["note"] == "hook 0 (examples/hooks/facts.sh) ended with status 3"
    assert any("broken" in line for line in step["tail"])
