"""Random jobs, faults and restarts on a real local cluster, and an audit of what became of them:

    .venv/bin/python -m tests.bench.soak --minutes 30
    .venv/bin/python -m tests.bench.soak --minutes 30 --machines container --faults kill,freeze --seed 5
    .venv/bin/python -m tests.bench.soak --minutes 30 --machines container --lose-head 300
    .venv/bin/python -m tests.bench.soak --minutes 30 --sharing
    .venv/bin/python -m tests.bench.soak --minutes 30 --pools

It brings up a cluster of its own on this machine. For N minutes it submits jobs (sizes, lengths, arrays,
GPUs, --no-requeue), cancels and requeues them, sets the local cloud's limits, kills, freezes and takes back
machines, and kills daemons. With --lose-head it ends the controller and deletes its root disk every so many
seconds, and `./cluster up` makes another one, which takes over its disk with Slurm's state. It kills
`./cluster up` that changes the cluster, and `./cluster down` that has closed the partitions, and runs
`./cluster down` beside another command, where it must be refused. With --sharing the jobs are of several
accounts with limits, jobs of one QOS make way for those of another, and slurmdbd and its database are killed,
too. Then it removes all faults, waits until the
queue is empty, and checks that

- every job is accounted for: completed, cancelled by us, or ended with its machine where it asked for that;
- every run that was cut off was cut off by a fault of this program, of its job or of its machine;
- what had run to its end ran again only where Slurm queued it again because of such a fault;
- the accounting of container machines, and of --sharing, has the end of every job;
- with --sharing only jobs whose QOS says so made way, for those whose QOS says so, and nothing stays counted
  against a limit;
- no machine and no process is left, every node is idle and off, and there were never too many machines.

It prints the seed and, every 10 s, what is going on. It exits 1 with the findings and the folder of the logs.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from node.design.model import CONTAINER, PROCESS
from tests.bench.figures import parser
from tests.support.soak import sharing
from tests.support.soak.commands import COMMANDS
from tests.support.soak.faults import ALL_KINDS, KINDS
from tests.support.soak.harness import Options, soak

PRINTS = r"^jobs: \d+; .*\nfaults: [1-9].*(?s:.)*^findings: 0$"


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, minutes=0.1, faults="elastic")
    arguments.add_argument(
        "--minutes", type=float, default=2.0, help="of jobs and faults, before the queue empties"
    )
    arguments.add_argument("--seed", type=int, help="the same choices again; times still differ")
    arguments.add_argument("--machines", choices=(PROCESS, CONTAINER), default=PROCESS)
    arguments.add_argument(
        "--faults",
        default="all",
        help=f"all, none, or some of {', '.join(ALL_KINDS)}, with commas between; cut: container only",
    )
    arguments.add_argument(
        "--lose-head",
        type=float,
        metavar="SECONDS",
        help="lose the controller every so often; container only",
    )
    arguments.add_argument(
        "--pools", action="store_true", help="a partition has three pools; no job has nodes of two"
    )
    arguments.add_argument(
        "--sharing",
        action="store_true",
        help="jobs of three accounts, limits, and a QOS whose jobs have others make way; process only",
    )
    arguments.add_argument(
        "--drain", type=float, default=300.0, help="seconds that the queue may take to empty"
    )
    arguments.add_argument("--logs", type=Path, help="where the logs are kept; else a new folder in /tmp")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    every: tuple[str, ...] = ALL_KINDS if chosen.machines == CONTAINER else (*KINDS, *COMMANDS)
    every += sharing.DAEMONS if chosen.sharing else ()
    kinds = {"all": every, "none": ()}.get(chosen.faults, tuple(chosen.faults.split(",")))
    if unknown := [kind for kind in kinds if kind not in every]:
        options().error(f"--faults: {', '.join(unknown)}: no such kind; there are {', '.join(every)}")
    if chosen.logs is not None and chosen.logs.exists():
        options().error(f"--logs: {chosen.logs} exists already: name a new folder")
    if chosen.lose_head is not None and chosen.machines != CONTAINER:
        options().error(
            "--lose-head: process machines have no disk for Slurm's state; add --machines container"
        )
    if chosen.sharing and chosen.machines != PROCESS:
        options().error("--sharing: process machines only")
    seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
    try:
        found = soak(
            Options(
                chosen.minutes * 60,
                seed,
                chosen.drain,
                chosen.machines,
                kinds,
                chosen.logs,
                chosen.lose_head,
                chosen.sharing,
                chosen.pools,
            )
        )
    except KeyboardInterrupt:
        print("interrupted: the cluster is gone, the logs are kept", file=sys.stderr)
        return 130
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
