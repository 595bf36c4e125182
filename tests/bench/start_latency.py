"""From `sbatch` to the script running on nodes that were off, and from the last job's end to zero nodes:

    .venv/bin/python -m tests.bench.start_latency --submissions 20 --wide 50

Brings up a cluster of its own on this machine and removes it. All jobs write the time (of one clock) at which
their script starts. Times are seconds.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figures import parser, spread
from tests.support.checkout import Checkout, until

SUSPEND_SECONDS = 3
STACK = """
config:
  slurm-stacks:cluster:
    provider: local
    partitions:
      - {{name: debug, instance_type: local.small, nodes: {{max: 8}}, default: true}}
      - {{name: wide, instance_type: local.small, nodes: {{max: {wide}}}}}
    slurm: {{suspend_time: {suspend}}}
  slurm-stacks:benchmark: {{enabled: false}}
"""
PRINTS = (
    r"^sbatch to script, nodes off: \d+\.\d\d .* s\n"
    r"last job's end to zero nodes: \d+\.\d .* s .*\n"
    r"\d+ one-node jobs at once: \d+\.\d\d .* s"
)
SCRIPT = "#!/bin/sh\ndate +%s.%N > start-$SLURM_JOB_ID\nsrun hostname >/dev/null\n"


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, submissions=3, wide=4)
    arguments.add_argument("--submissions", type=int, default=20, help="of jobs of 1, 2 and 8 nodes")
    arguments.add_argument(
        "--wide", type=int, default=50, help="the number of jobs that are submitted at once"
    )
    arguments.add_argument("--seed", type=int, default=1)
    return arguments


def main() -> int:
    chosen = options().parse_args()
    random.seed(chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(Path(folder) / "a b", STACK.format(wide=chosen.wide, suspend=SUSPEND_SECONDS))
        work = checkout.folder / "work"  # which nodes see also in /tmp
        work.mkdir()
        (work / "job").write_text(SCRIPT)
        try:
            checkout.cluster("up", check=True)
            starts(checkout, work, chosen.submissions)
            wide(checkout, work, chosen.wide)
        finally:
            left = checkout.close()
    print(f"left behind: {left or 'nothing'}")
    return 1 if left else 0


def submit(checkout: Checkout, work: Path, *arguments: str) -> tuple[int, float]:
    """Submit a job at once; its id, and when sbatch was started."""
    environment = {"SLURM_CONF": str(checkout.run_directory / "etc" / "slurm.conf")}
    begun = time.time()
    command = ["sbatch", "--parsable", "--output=/dev/null", f"--chdir={work}", *arguments, str(work / "job")]
    done = subprocess.run(
        command, env={**checkout.env, **environment}, capture_output=True, text=True, check=True
    )
    return int(done.stdout), begun


def all_off(checkout: Checkout) -> bool:
    return not checkout.execute("sinfo", "--noheader", "--Node", "--format=%N %T").count("idle\n") and all(
        line.endswith("~")
        for line in checkout.execute("sinfo", "--noheader", "--Node", "--format=%T").split()
    )


def starts(checkout: Checkout, work: Path, count: int) -> None:
    seconds: dict[int, list[float]] = {1: [], 2: [], 8: []}
    downs = []
    for number in range(count):
        nodes = (1, 2, 8)[number % 3]
        # Slurm's own ticks (1 s, 30 s) must not be met at the same phase each time.
        time.sleep(random.uniform(0, 3))
        job, begun = submit(checkout, work, "--partition=debug", f"--nodes={nodes}")
        mark = work / f"start-{job}"
        until(lambda mark=mark: mark.exists() and mark.stat().st_size, 60, f"job {job}", 0.02)  # type: ignore[misc]
        seconds[nodes].append(float(mark.read_text()) - begun)
        until(
            lambda job=job: not checkout.execute("squeue", "--noheader", f"--jobs={job}", check=False),  # type: ignore[misc]
            30,
            "end",
        )
        ended = time.time()
        until(lambda: all_off(checkout), 60, "all nodes off", 0.2)
        downs.append(time.time() - ended)
        print(f"  job {job}, {nodes} nodes: start {seconds[nodes][-1]:.2f}, off {downs[-1]:.1f}", flush=True)
    for nodes, values in seconds.items():
        if values:
            print(f"{nodes} nodes: {spread(values, 2)} s, of {len(values)}")
    every = [value for values in seconds.values() for value in values]
    print(f"sbatch to script, nodes off: {spread(every, 2)} s")
    print(f"last job's end to zero nodes: {spread(downs)} s (SuspendTime {SUSPEND_SECONDS} s)")


def wide(checkout: Checkout, work: Path, count: int) -> None:
    jobs = [submit(checkout, work, "--partition=wide", "--nodes=1", "--exclusive") for _ in range(count)]
    marks = [work / f"start-{job}" for job, _ in jobs]
    until(lambda: all(mark.exists() and mark.stat().st_size for mark in marks), 120, "all jobs", 0.05)
    waits = [float(mark.read_text()) - begun for mark, (_, begun) in zip(marks, jobs, strict=True)]
    print(f"{count} one-node jobs at once: {spread(waits, 2)} s, each after its own sbatch")


if __name__ == "__main__":
    sys.exit(main())
