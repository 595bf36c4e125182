"""What 50,000 declared nodes cost the elastic daemon, beside a tenth of them, without Slurm and a cloud:

    .venv/bin/python -m tests.bench.declared
    .venv/bin/python -m tests.bench.declared --nodes 20000 --repeat 5

In place of Slurm's programs there are scripts that print what slurmctld would say; a fifth of the nodes is on
its way up. The first reading parses every line; those after it find that none has changed. A look is all that
the daemon does at its interval. Each size has a process of its own. CPU milliseconds are the daemon's own.
A minute. Exits 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.design.folders import Folders
from node.design.model import ClusterDesign, Partition
from node.elastic.daemon import Elastic, collect_seldom
from node.slurm import environment
from node.slurm.configure import configure
from node.slurm.control import Control
from node.slurm.hostlist import fold
from node.system import files
from tests.bench.figures import ROOT, Targets, parser
from tests.support.cpu_meter import rss
from tests.support.doubles import DEBUG, FakeDriver, design, settings

PARTITIONS = 5
MEMORY_MIB = 200.0
"""A cloud's client library takes up to fifty more."""
GROWTH = 20.0
"""How much more a look at ten times as many nodes may take. Processors' caches do not hold them, and hold
5,000: 11 to 17 times were measured on a busy machine."""
PRINTS = r"^ +\d+ nodes: the first reading [\d.]+ ms(?s:.)*^missed: nothing$"
OFF, STARTING = "IDLE+CLOUD+POWERED_DOWN", "ALLOCATED+CLOUD+POWERING_UP"


def declared(nodes: int) -> ClusterDesign:
    each = nodes // PARTITIONS
    names = [f"p{number}" for number in range(PARTITIONS)]
    partitions = (dataclasses.replace(DEBUG, name=p, max=each, default=p == "p0") for p in names)
    return design(*partitions, isolation="vm", provider="aws")


def lines(partition: Partition, state: str) -> Iterator[str]:
    """Yield the lines of a partition's nodes, as `scontrol show nodes --oneliner` of 22.05 has them."""
    for node in partition.nodes():
        yield (
            f"NodeName={node} CoresPerSocket=2 CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.00 "
            f"AvailableFeatures={partition.instance_type},ondemand ActiveFeatures={partition.instance_type} "
            f"Gres=(null) NodeAddr={node} NodeHostName={node} RealMemory=1000 AllocMem=0 FreeMem=N/A "
            f"Sockets=1 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=10 Owner=N/A MCS_label=N/A "
            f"Partitions={partition.name} BootTime=None SlurmdStartTime=None LastBusyTime=1795850000 "
            "CfgTRES=cpu=2,mem=1000M,billing=2 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
            "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s\n"
        )


def stand_in(folder: Path, cluster: ClusterDesign) -> None:
    """Write programs that answer as Slurm's would."""
    shown = (
        f"PartitionName={p.name} Nodes={fold(p.nodes())} Default={'YES' if p.default else 'NO'} "
        f"DefMemPerCPU={p.memory_mib // p.cpus} State=UP\n"
        for p in cluster.partitions
    )
    (folder / "partitions").write_text("".join(shown))
    with (folder / "nodes").open("w") as stream:
        for partition in cluster.partitions:
            stream.writelines(lines(partition, STARTING if partition.default else OFF))
    answers = f"*' nodes '*) exec cat {folder}/nodes ;; *' partitions '*) exec cat {folder}/partitions ;;"
    text = f"case \"$*\" in {answers} *config*) echo 'BOOT_TIME               = 99999999999' ;; esac\n"
    for name, body in (("scontrol", text), ("squeue", ""), ("scancel", "")):
        (folder / name).write_text(f"#!/bin/sh\n{body}")
        (folder / name).chmod(0o755)


def measure(nodes: int, repeat: int) -> dict[str, float]:
    """Return the figures of one size; this process is the daemon."""
    collect_seldom()
    # The path is short, because sockets lie below it.
    with tempfile.TemporaryDirectory(dir="/tmp") as name, pytest.MonkeyPatch.context() as patch:
        folder, cluster = Path(name), declared(nodes)
        stand_in(folder, cluster)
        patch.setattr(environment, "PATH", f"{folder}:/usr/bin:/bin")
        its = settings(folder, cluster)
        folders = Folders(its)
        for path in (folders.etc, folders.elastic, folders.state):
            Path(str(path)).mkdir(parents=True)
        configure(its, "slurm-wlm 22.05.8", files.write)
        control = Control(str(folders.slurm_conf))
        elastic = Elastic(its, control, FakeDriver(), Path(str(folders.elastic)))

        def cpu_ms(work: object) -> float:
            begun = time.process_time()
            work()  # type: ignore[operator]
            return (time.process_time() - begun) * 1000

        first = cpu_ms(control.nodes)
        elastic.look()
        again = min(cpu_ms(control.nodes) for _ in range(repeat))
        look = min(cpu_ms(elastic.look) for _ in range(repeat))
        return {"first": first, "again": again, "look": look, "memory": rss(os.getpid())}


def of_a_process(nodes: int, repeat: int) -> dict[str, float]:
    code = "import json; from tests.bench.declared import measure; "
    code += f"print(json.dumps(measure({nodes}, {repeat})))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, nodes=2000, repeat=1)
    arguments.add_argument("--nodes", type=int, default=50_000, help="declared, in five partitions")
    arguments.add_argument("--repeat", type=int, default=3, help="the least of so many counts")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    targets = Targets(timed=not chosen.quick)
    figures = {nodes: of_a_process(nodes, chosen.repeat) for nodes in (chosen.nodes // 10, chosen.nodes)}
    for nodes, found in figures.items():
        print(
            f"  {nodes:6d} nodes: the first reading {found['first']:.0f} ms, again {found['again']:.1f} ms, "
            f"a look {found['look']:.0f} ms; {found['memory']:.0f} MiB"
        )
    small, large = figures.values()
    targets.below("a look at ten times as many nodes", large["look"] / small["look"], GROWTH, "times")
    targets.below(f"memory with {chosen.nodes} nodes", large["memory"], MEMORY_MIB, "MiB")
    return targets.status()


if __name__ == "__main__":
    sys.exit(main())
