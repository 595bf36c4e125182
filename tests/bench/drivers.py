"""What a launch, a listing and an end of 1,000 nodes ask of EC2 and of Compute Engine:

    .venv/bin/python -m tests.bench.drivers --nodes 1000

The clouds are the tests' fakes on loopback, so the seconds are an upper bound of the drivers' own, and say
nothing about the clouds'. The calls are the drivers': Google's go through its real client. For deletes it
also prints the time at the limit that the driver keeps for a Google project. Exits 1 if EC2 is asked more
often than its limits for one call make necessary.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from node.design.model import Partition, Settings, Site
from node.elastic.driver import LaunchGroup
from node.elastic.drivers.gce import deletes as gce_deletes
from tests.bench.figures import Targets, parser
from tests.support import doubles
from tests.support.fake_ec2 import fake_ec2
from tests.support.fake_gce import fake_gce

PRINTS = (
    r"^EC2, launch of \d+: .* RunInstances(?s:.)*^Compute Engine, launch of \d+: .* instances\.bulk_insert"
)
LAUNCHED_A_CALL, LISTED_A_PAGE, ENDED_A_CALL = 500, 1000, 1000
"""EC2's limits."""


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, nodes=20)
    arguments.add_argument("--nodes", type=int, default=1000)
    return arguments


def show(
    fake: Any, asked: Callable[[], Iterable[str]], what: str, act: Callable[[], Any]
) -> tuple[Any, Counter[str]]:
    """Do something, and print its seconds and calls. Returns its result and the calls."""
    fake.forget()
    began = time.monotonic()
    result = act()
    seconds = time.monotonic() - began
    calls = Counter(asked())
    print(
        f"{what}: {seconds:.2f} s, {', '.join(f'{number} {name}' for name, number in calls.items())}",
        flush=True,
    )
    return result, calls


def settings(nodes: int, cloud: str, site: dict[str, Any]) -> tuple[Settings, LaunchGroup]:
    partition = Partition("compute", "a-type", 8, 100, 0, nodes)
    design = doubles.design(partition, provider=cloud, isolation="vm")
    group = LaunchGroup("compute", tuple(partition.nodes()), True, "bench")
    return Settings(design, Site("/", "slurm", "head", "10.0.0.1", **site)), group


def ec2(targets: Targets, nodes: int) -> None:
    with fake_ec2() as fake:
        found, group = settings(nodes, "aws", fake.site())
        driver = fake.driver(found)
        done, calls = show(fake, fake.actions, f"EC2, launch of {nodes}", lambda: driver.launch(group))
        assert len(done.launched) == nodes, done.failures
        targets.exactly("calls that launch", calls["RunInstances"], -(-nodes // LAUNCHED_A_CALL))
        machines, calls = show(fake, fake.actions, "EC2, listing", driver.list)
        targets.exactly("pages", calls["DescribeInstances"], -(-nodes // LISTED_A_PAGE))
        ids = [machine.id for machine in machines]
        _, calls = show(fake, fake.actions, f"EC2, end of {len(ids)}", lambda: driver.terminate(ids))
        targets.exactly("calls that end", calls["TerminateInstances"], -(-nodes // ENDED_A_CALL))


def gce(nodes: int) -> None:
    paced = max(0.0, (nodes - gce_deletes.BURST) / gce_deletes.RATE)
    gce_deletes.BURST, gce_deletes.ASK_SECONDS = nodes, 0.0
    with fake_gce() as fake:
        found, group = settings(nodes, "gcp", fake.site())
        driver = fake.driver(found)
        driver.list()  # the client is imported and connected
        name = "Compute Engine"
        show(fake, fake.names, f"{name}, launch of {nodes}", lambda: driver.launch(group))
        machines, _ = show(fake, fake.names, f"{name}, listing", driver.list)
        ids = [machine.id for machine in machines]
        show(fake, fake.names, f"{name}, end of {len(ids)}", lambda: driver.terminate(ids))
        fake.cloud.advance(1)
        show(fake, fake.names, f"{name}, listing, and what came of the deletes", driver.list)
    print(f"{nodes} deletes at the pace of a Google project: {paced:.0f} s")


def main() -> int:
    chosen = options().parse_args()
    targets = Targets()
    ec2(targets, chosen.nodes)
    gce(chosen.nodes)
    return targets.status()


if __name__ == "__main__":
    sys.exit(main())
