"""What a large stack on AWS costs: a plan's time, and the driver's time and calls for 1,000 nodes.

`.venv/bin/python tests/bench/ec2_scale.py [--nodes 1000] [--repeat 5]`

Three parts, against the tests' fake EC2 on loopback (its answers take most of the time, so times of whole
launches are the fake's, and only calls are targets):

1. `plan --stack aws-gpu` as a user runs it, a process each;
2. planning a launch: from the resume file's text to the driver's last request, with a client that answers at
   once, beside the same with the local driver;
3. EC2's calls for a launch, a listing and an end of that many instances.

About a minute on two cores. Exits 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.sites import AwsSite, LocalSite

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from node import rpc  # noqa: E402
from node.elastic.driver import LaunchGroup  # noqa: E402
from node.elastic.drivers.ec2.driver import Ec2Driver  # noqa: E402
from node.elastic.drivers.local import LocalDriver  # noqa: E402
from node.elastic.launcher import launch_groups  # noqa: E402
from node.model import Partition, Settings, Site  # noqa: E402
from node.slurm.hostlist import fold  # noqa: E402
from node.slurm.version import parse_resume  # noqa: E402
from tests.support import doubles  # noqa: E402
from tests.support.fake_ec2 import FakeEc2, fake_ec2  # noqa: E402

PLAN_SECONDS = 6.0
NODES_A_CALL = 500
TERMINATE_CALLS = 2


class Instant:
    """A client of EC2 that answers at once, so that only the driver's own time is measured."""

    def run_instances(self, **asked: Any) -> dict[str, Any]:
        running = {"State": {"Name": "pending"}}
        return {
            "Instances": [
                {"InstanceId": f"i-{n}", "AmiLaunchIndex": n, **running} for n in range(asked["MaxCount"])
            ]
        }

    def describe_launch_template_versions(self, **_asked: Any) -> dict[str, Any]:
        data = {"NetworkInterfaces": [{"DeviceIndex": 0}]}
        return {"LaunchTemplateVersions": [{"VersionNumber": 1, "LaunchTemplateData": data}]}


class Figures:
    """What was measured, and which targets were missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def target(self, what: str, value: float, most: float, unit: str) -> None:
        good = value <= most
        said = f"  {what}: {value:g} {unit} (at most {most:g}){'' if good else '  MISSED'}"
        print(said, flush=True)
        if not good:
            self.missed.append(what)


def plans(figures: Figures, repeat: int) -> None:
    line = [str(ROOT / ".venv" / "bin" / "python"), "-c", "from cli.main import main; main()"]
    took = []
    for _ in range(repeat):
        began = time.monotonic()
        done = subprocess.run(
            [*line, "plan", "--stack", "aws-gpu", "--json"],
            cwd=ROOT, capture_output=True, check=True, env={**os.environ, "SLURM_STACKS_PROJECT": str(ROOT)},
        )  # fmt: skip
        took.append(time.monotonic() - began)
    print(f"  {len(json.loads(done.stdout)['resources'])} resources; {', '.join(f'{t:.1f}' for t in took)} s")
    figures.target("plan --stack aws-gpu, median", round(statistics.median(took), 2), PLAN_SECONDS, "s")


def median_ms(work: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1000


def planning(figures: Figures, nodes: int, repeat: int, folder: Path) -> None:
    """Half of the nodes for one job, the rest for jobs of one node each."""
    partition = Partition("compute", "c4.2xlarge", 8, 100, 0, nodes)
    made = doubles.design(partition, provider="aws")
    names = partition.nodes()
    wishes = [names[: nodes // 2], *([name] for name in names[nodes // 2 :])]
    jobs = [{"job_id": 100 + i, "nodes": fold(some)} for i, some in enumerate(wishes)]
    text = json.dumps({"all_nodes": fold(names), "jobs": jobs})
    socket = str(folder / "cloud" / "agent.sock")
    (folder / "cloud").mkdir()
    site = Site("/", "slurm", "head", "10.0.0.1", bucket="b")
    aws = AwsSite("eu-west-1", "t", {"eu-west-1a": "subnet-1"}, {"compute": "lt-1"})

    def answer(_method: str, asked: dict[str, Any]) -> dict[str, Any]:
        return {"machines": [{"node": n, "id": f"m-{n}"} for n in asked["names"]], "failures": []}

    server = rpc.Server(socket, answer)
    threading.Thread(target=server.serve, daemon=True).start()
    ec2 = Ec2Driver(Settings(made, dataclasses.replace(site, cloud=aws)), Instant, lambda _running: {})
    local = LocalDriver(Settings(made, dataclasses.replace(site, cloud=LocalSite(socket))))
    tokens = iter(range(10**6))

    def request(driver: Any) -> None:
        calls, _ = launch_groups(parse_resume(text), made, f"r{next(tokens)}")
        for call in calls:
            done = driver.launch(dataclasses.replace(call, token=f"{call.token}-{next(tokens)}"))
            assert len(done.launched) == len(call.nodes)

    try:
        ours, theirs = (median_ms(lambda d=one: request(d), repeat) for one in (ec2, local))  # type: ignore[misc]
    finally:
        server.close()
    print(f"  {nodes} nodes planned and asked for: EC2's driver {ours:.1f} ms, the local one {theirs:.1f} ms")
    # The two do different work (the local driver crosses a socket), so only a factor is compared.
    figures.target("EC2's driver beside the local one", round(ours / theirs, 2), 2.0, "times")


def calls(figures: Figures, fake: FakeEc2, nodes: int) -> None:
    partition = Partition("compute", "c4.2xlarge", 8, 100, 0, nodes)
    made = doubles.design(partition, provider="aws")
    settings = Settings(made, Site("/", "slurm", "head", "10.0.0.1", **fake.site()))
    driver = fake.driver(settings)

    def counted(work: Callable[[], Any]) -> tuple[Any, Counter[str], float]:
        fake.forget()
        began = time.perf_counter()
        result = work()
        return result, Counter(fake.actions()), time.perf_counter() - began

    group = LaunchGroup("compute", tuple(partition.nodes()), True, "bench")
    done, asked, took = counted(lambda: driver.launch(group))
    assert len(done.launched) == nodes, done.failures
    print(f"  launch of {nodes}: {dict(asked)} in {took:.1f} s, the fake's")
    figures.target("launch calls", asked["RunInstances"], -(-nodes // NODES_A_CALL), "calls")
    listed, asked, took = counted(driver.list)
    print(f"  a listing of {len(listed)}: {dict(asked)} in {took:.1f} s, the fake's")
    figures.target("pages of instances", asked["DescribeInstances"], -(-nodes // 1000), "calls")
    _, asked, took = counted(lambda: driver.terminate([machine.id for machine in listed]))
    print(f"  the end of all: {dict(asked)} in {took:.1f} s, the fake's")
    figures.target("termination", asked["TerminateInstances"], TERMINATE_CALLS, "calls")


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--repeat", type=int, default=5)
    chosen = options.parse_args()
    figures = Figures()
    print("plan")
    plans(figures, chosen.repeat)
    print("planning a launch")
    with tempfile.TemporaryDirectory() as folder:
        planning(figures, chosen.nodes, chosen.repeat, Path(folder))
    print("calls")
    with fake_ec2() as fake:
        calls(figures, fake, chosen.nodes)
    print(f"missed: {', '.join(figures.missed) or 'nothing'}")
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())
