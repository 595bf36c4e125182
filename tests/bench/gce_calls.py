"""What a thousand nodes on Compute Engine cost: calls and seconds of the driver, with Google's real client.

`.venv/bin/python tests/bench/gce_calls.py [--nodes 1000]`

The cloud is the tests' fake on loopback, in the same process: the seconds are an upper bound of the driver's
own, and say nothing about Google's. For deletes it also prints the time at the driver's limit for a project.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from node.elastic.driver import LaunchGroup
from node.elastic.drivers.gce import deletes as gce_deletes
from node.model import Partition, Settings, Site
from tests.support import doubles
from tests.support.fake_gce import FakeGce, fake_gce


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    count = parser.parse_args().nodes
    paced = max(0.0, (count - gce_deletes.BURST) / gce_deletes.RATE)
    gce_deletes.BURST, gce_deletes.ASK_SECONDS = count, 0.0
    partition = Partition("compute", "n1-standard-8", 8, 100, 0, count)
    design = doubles.design(partition, provider="gcp", isolation="vm")
    with fake_gce() as fake:
        site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
        driver = fake.driver(Settings(design, site))
        driver.list()  # the client is imported and connected
        nodes = tuple(partition.nodes())
        _show(fake, f"launch of {count}", lambda: driver.launch(LaunchGroup("compute", nodes, True, "t")))
        _show(fake, "list", driver.list)
        ids = [machine.id for machine in driver.list()]
        _show(fake, f"{count} deletes", lambda: driver.terminate(ids))
        fake.cloud.advance(1)
        _show(fake, "list, and what came of the deletes", driver.list)
    print(f"{count} deletes at the pace of a project: {paced:.0f} s")


def _show(fake: FakeGce, what: str, act: Callable[[], object]) -> None:
    fake.forget()
    begun = time.monotonic()
    act()
    seconds = time.monotonic() - begun
    calls = ", ".join(f"{number} {name}" for name, number in fake.counts().items())
    print(f"{what}: {seconds:.2f} s, {calls}")


if __name__ == "__main__":
    main()
