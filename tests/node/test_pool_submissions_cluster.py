"""Which pool each kind of submission gets: the page's tables, tried with a real slurmctld.

The release is that of this machine; `tests/cluster/test_newer_slurm.py` runs the file with 24.11 as well.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from node.design.accelerators import Accelerator
from node.design.model import Partition, SlurmSettings
from node.slurm.hostlist import expand
from tests.node.slurm_cluster import WAIT_FOR_NODES, SlurmCluster, design, needs_slurm, partition
from tests.support.checkout import ROOT

pytestmark = [pytest.mark.cluster, needs_slurm, pytest.mark.wide, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "reference" / "pools_and_submissions.md"
TABLE = re.compile(r"^\| `(-[^`]*)` \| ([^|]*) ?\| (\w+) \| ([^|]*) ?\|$", re.MULTILINE)
REFUSALS = (
    "Requested node configuration is not available",
    "Requested topology configuration is not available",
    "Node count specification invalid",
)
WAITS = ("Resources", "ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN", "BadConstraints")

REALLY = ('-C "[', "--prefer", "-w train-third-2 -N2", "-N2", "--exclusive -N2")
"""Rows that are submitted: `--test-only` of 22.05 names another pool for the first ones. The last ones show
that otherwise the two agree."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page.

    Attributes:
        drained: Pool -> how many of its nodes are drained.
        otherwise: Release -> the outcome on it, where it is not `outcome`.
    """

    options: str
    drained: dict[str, int]
    outcome: str
    otherwise: dict[str, str]

    def __str__(self) -> str:
        return " ".join(
            [self.options, *(f"{count} of {pool} drained" for pool, count in self.drained.items())]
        )

    def on(self, release: str) -> str:
        return self.otherwise.get(release, self.outcome)


POOLS = {"first": 3, "second": 2, "third": 4}


def rows() -> Iterator[Row]:
    """Yield the rows of the page."""
    for options, drained, outcome, otherwise in TABLE.findall(PAGE.read_text(encoding="utf-8")):
        words = [word.split(" of ") for word in drained.strip().split(", ") if word.strip()]
        counts = {word[-1]: int(word[0]) if len(word) == 2 else POOLS[word[-1]] for word in words}
        pairs = (part.strip().split(": ") for part in otherwise.split(",") if part.strip())
        yield Row(options, counts, outcome, dict(pairs))


def pool(name: str, cpus: int, memory: int, gpu: str | None, *, spot: bool = True) -> Partition:
    return Partition(
        f"train-{name}",
        "tiny",
        cpus,
        memory,
        0,
        POOLS[name],
        pool=name,
        spot=spot,
        weight=10 * (1 + list(POOLS).index(name)),
        accelerator=Accelerator(gpu, 1, simulated=True) if gpu else None,
    )


def started() -> SlurmCluster:
    timers = SlurmSettings(suspend_time=600, suspend_timeout=2, resume_timeout=300, slurmd_timeout=60)
    pools = (
        pool("first", 2, 1000, None),
        pool("second", 4, 2000, "a100"),
        pool("third", 2, 1000, "v100", spot=False),
    )
    return SlurmCluster(design(*pools, partition(), slurm=timers), WAIT_FOR_NODES)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """A cluster each of whose nodes has been up once: 22.05 prefers nodes that never were."""
    with started() as running:
        nodes = [f"train-{name}-{number}" for name, count in POOLS.items() for number in range(count)]
        for change, state in (("POWER_UP", "idle"), ("POWER_DOWN_FORCE", "idle~")):
            running.run("scontrol", "update", f"NodeName={','.join(nodes)}", f"State={change}")
            running.wait(state, lambda state=state: set(nodes) <= nodes_in(running, state, exactly=True))  # type: ignore[misc]
        yield running


def release(cluster: SlurmCluster) -> str:
    return "{:02}.{:02}".format(*cluster.release)


def pools_of(nodes: str) -> set[str]:
    return {node.split("-")[1] for node in expand(nodes)}


def job(cluster: SlurmCluster, number: str) -> dict[str, str]:
    text = cluster.run("scontrol", "--oneliner", "show", "job", number).stdout
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def nodes_in(cluster: SlurmCluster, state: str, *, exactly: bool = False) -> set[str]:
    listed = cluster.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
    return {
        name
        for name, found in map(str.split, listed)
        if (found == state if exactly else found.startswith(state))
    }


def drain(cluster: SlurmCluster, counts: dict[str, int]) -> list[str]:
    nodes = [f"train-{name}-{number}" for name, count in counts.items() for number in range(count)]
    if nodes:
        cluster.run("scontrol", "update", f"NodeName={','.join(nodes)}", "State=DRAIN", "Reason=no capacity")
    return nodes


def outcome(nodes: str) -> str:
    pools = pools_of(nodes)
    return "several" if len(pools) > 1 else pools.pop()


def refused(said: str) -> str:
    assert any(words in said for words in REFUSALS), said
    return "refused"


def tried(cluster: SlurmCluster, *options: str) -> str:
    """Return the pool by which Slurm says that a job would start now, `several`, or `refused`."""
    command = ("sbatch", "--test-only", "-p", "train", *options, "--wrap", "true")
    done = cluster.run(*command, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        return refused(said)
    found = re.search(r" on nodes (\S+) in partition", said)
    assert found, said
    return outcome(found[1])


def placed(cluster: SlurmCluster, *options: str) -> str:
    """Return the pool that a job really gets, `several`, or `refused`. Its nodes are off again.

    The job runs: where one is cancelled while its nodes start, Slurm leaves them out for some seconds.
    """
    done = cluster.run("sbatch", "--parsable", "-p", "train", *options, "--wrap", "true", check=False)
    if done.returncode:
        return refused(done.stderr)
    number = done.stdout.strip()
    cluster.wait("its end", lambda: job(cluster, number)["JobState"] == "COMPLETED")
    nodes = job(cluster, number)["NodeList"]
    cluster.run("scontrol", "update", f"NodeName={nodes}", "State=POWER_DOWN_FORCE")
    cluster.wait("its nodes' end", lambda: set(expand(nodes)) <= nodes_in(cluster, "idle~"))
    # Slurm leaves nodes out for a moment after they are off.
    time.sleep(3)
    return outcome(nodes)


def waits(cluster: SlurmCluster, *options: str) -> bool:
    """Return whether a job is taken, and no node is found for it."""
    number = cluster.run("sbatch", "--parsable", "-p", "train", *options, "--wrap", "true").stdout.strip()
    try:
        cluster.wait("its reason", lambda: job(cluster, number)["Reason"].startswith(WAITS), 60)
        return job(cluster, number)["JobState"] == "PENDING"
    finally:
        cluster.run("scancel", number)


ROWS = list(rows())


def test_the_page_has_rows_of_each_outcome() -> None:
    assert len(ROWS) > 50
    assert {row.outcome for row in ROWS} == {*POOLS, "refused", "waits", "several"}
    assert any(row.drained for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_slurm_does_with_a_submission_what_the_page_says(cluster: SlurmCluster, row: Row) -> None:
    expected, options = row.on(release(cluster)), shlex.split(row.options)
    drained = drain(cluster, row.drained)
    try:
        if expected == "waits":
            # `--test-only` says of such a job that it is refused.
            assert waits(cluster, *options)
        elif row.options.startswith(REALLY):
            assert placed(cluster, *options) == expected
        else:
            assert tried(cluster, *options) == expected
    finally:
        if drained:
            cluster.run("scontrol", "update", f"NodeName={','.join(drained)}", "State=RESUME")
            cluster.wait("its nodes", lambda: not nodes_in(cluster, "drain"))


def test_parts_tasks_and_jobs_get_a_pool_each_in_the_pools_order() -> None:
    with started() as cluster:
        cluster.boot = lambda node: False
        train = ("sbatch", "-p", "train", "--exclusive")

        def get(count: int, *options: str) -> list[set[str]]:
            """Submit, and return the pools of each job that has nodes, when there are so many."""
            cluster.run(*train, *options, "--wrap", "true")
            cluster.wait("its nodes", lambda: len(given(cluster)) == count)
            return [pools_of(nodes) for nodes in given(cluster)]

        parts = ("-N1", "-C", "spot", ":", *train[1:], "-N1", "-C", "ondemand")
        assert get(2, *parts) == [{"first"}, {"third"}]
        # What is left of the first pool comes before the others.
        assert get(3, "-N1")[2:] == [{"first"}]
        assert get(5, "-N1", "--array=0-1")[3:] == [{"first"}, {"second"}]
        assert get(6, "-N2")[5:] == [{"third"}]
        assert get(7, "-N1")[6:] == [{"second"}]


def given(cluster: SlurmCluster) -> list[str]:
    """Return the nodes of each job, task and part that has some, in their order."""
    lines = cluster.run("squeue", "--noheader", "--array", "--sort=i", "--format=%N").stdout.splitlines()
    return [line.strip() for line in lines if line.strip()]
