"""Whether two accounts with equal shares get half of a busy cluster each, although one has the longer queue:

    .venv/bin/python -m tests.bench.shares --minutes 10

It brings a local cluster up, keeps short tasks of both accounts waiting, twice as many of the first, and
prints each account's part of the time that tasks ran. The half-life is ten minutes.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bench.figures import parser
from tests.support.checkout import Checkout, running

PRINTS = r"^few +[1-9][0-9.]+ %\nmany +[1-9][0-9.]+ %$"
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: 2}}, default: true, exclusive: true}}
        slurm:
          suspend_time: 600
          accounting: true
          priority: {{decay_half_life: "00:10:00", calc_period: "00:01:00"}}
        accounts: [{{name: many}}, {{name: few}}]
        users: [{{name: {owner}, account: many, accounts: [few]}}]
      slurm-stacks:benchmark: {{enabled: false}}
"""
WAITING = {"many": 12, "few": 6}
"""Account -> how many of its tasks are kept in the queue."""
TASK_SECONDS = 3
LOOK_SECONDS = 5


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, minutes=0.5)
    arguments.add_argument("--minutes", type=float, default=10)
    return arguments


def fill(cluster: Checkout) -> None:
    """Submit an array for each account whose queue is short."""
    # An array that waits is one line, so its tasks are counted one by one.
    queued = Counter(cluster.ask("squeue", "--noheader", "--array", "--format=%a").split())
    for account, wanted in WAITING.items():
        if queued[account] < wanted:
            words = (f"--account={account}", f"--array=1-{wanted}", "--output=/dev/null")
            cluster.ask("sbatch", *words, "--wrap", f"sleep {TASK_SECONDS}")


def ran(cluster: Checkout) -> Counter[str]:
    """Return the seconds for which tasks of each account ran."""
    # With a state and a start, but no end, sacct shows what had the state at the start.
    words = ("--state=CD", "--starttime=today", "--endtime=now", "--format=account,elapsedraw")
    seconds: Counter[str] = Counter()
    for line in cluster.ask(
        "sacct", "--noheader", "--parsable2", "--allocations", "--allusers", *words
    ).splitlines():
        account, elapsed = line.split("|")
        seconds[account] += int(elapsed)
    return seconds


def main() -> int:
    chosen = options().parse_args()
    owner = pwd.getpwuid(os.getuid()).pw_name
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        running(Path(folder) / "checkout", STACK.format(owner=owner)) as cluster,
    ):
        end = time.monotonic() + 60 * chosen.minutes
        while time.monotonic() < end:
            fill(cluster)
            time.sleep(LOOK_SECONDS)
        seconds = ran(cluster)
    for account in sorted(WAITING):
        print(f"{account:<6}{100 * seconds[account] / max(1, seconds.total()):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
