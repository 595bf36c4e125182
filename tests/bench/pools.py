"""What a partition with five pools of 200 nodes costs the elastic daemon, in each pass and for one launch:

    .venv/bin/python -m tests.bench.pools --pools 5 --nodes 1000

All is in this process and nothing is launched. It times

1. the launch calls for a request of all nodes, each job whole in its pool;
2. which of 100 jobs may start when all pools but the last are refused, and why the others wait;
3. the drains of that.

Times are medians in milliseconds. Exits 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from node.design.model import ClusterDesign, Partition
from node.elastic.capacity_drains import drain_change
from node.elastic.failures import ErrorClass, Failure
from node.elastic.launch_groups import launch_groups
from node.elastic.pending_jobs import job_changes
from node.elastic.placing import Placing
from node.elastic.pools import Pool, Pools
from node.slurm.resume_request import ResumeJob, ResumeRequest
from node.slurm.states import JobState, NodeState
from tests.bench.figures import Targets, median_ms, parser
from tests.support import doubles

JOBS = 100
MOST_MS = 15.0
PRINTS = r"launch calls: .*\n.*jobs: .*\n.*drains: .*(?s:.)*^missed: "


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, nodes=50, repeat=2)
    arguments.add_argument("--pools", type=int, default=5)
    arguments.add_argument("--nodes", type=int, default=1000, help="of all pools together")
    arguments.add_argument("--repeat", type=int, default=50)
    return arguments


def pooled(pools: int, nodes: int) -> ClusterDesign:
    """Return a design with one partition."""
    kinds = [
        Partition(f"train-p{n}", "local.small", 2, 1000, 0, nodes // pools, pool=f"p{n}", spot=not n)
        for n in range(pools)
    ]
    return doubles.design(*kinds)


def jobs_of(design: ClusterDesign) -> list[JobState]:
    most = design.partitions[0].max
    return [
        doubles.job(n, "PENDING", partition="train", reason="Resources", wanted_nodes=1 + n % (2 * most))
        for n in range(JOBS)
    ]


def steps(design: ClusterDesign) -> dict[str, Callable[[], object]]:
    """Return the name of each step -> what it does."""
    refused = Failure((), ErrorClass.CAPACITY, "Full", "there are no machines left")
    pools = Pools(design)
    for partition in design.partitions[:-1]:
        pools.failed(Pool(partition.name), refused, 0.0)
    nodes = {
        name: NodeState(name, "IDLE", frozenset({"CLOUD", "POWERED_DOWN"}), partitions=("train",))
        for partition in design.partitions
        for name in partition.nodes()
    }
    names = tuple(nodes)
    size = design.partitions[0].max
    whole = [ResumeJob(n, names[n * size : (n + 1) * size]) for n in range(len(design.partitions))]
    request = ResumeRequest(names, tuple(whole))
    jobs, placing = jobs_of(design), Placing(design)

    def judge() -> object:
        limits = {p.name: pools.limit(p.name) for p in design.partitions}
        failures = {name: limit.failure if limit else None for name, limit in limits.items()}
        return job_changes(jobs, placing.capacities(nodes, failures), {}, 0.0)

    def drain() -> object:
        limits = {p.name: pools.limit(p.name) for p in design.partitions}
        return [drain_change(nodes, p.nodes(), (), limits[p.name]) for p in design.partitions]

    return {"launch calls": lambda: launch_groups(request, design, "r"), "jobs": judge, "drains": drain}


def main() -> int:
    chosen = options().parse_args()
    design, targets = pooled(chosen.pools, chosen.nodes), Targets(timed=not chosen.quick)
    for name, step in steps(design).items():
        targets.below(name, median_ms(step, chosen.repeat), MOST_MS, "ms")
    return targets.status()


if __name__ == "__main__":
    sys.exit(main())
