"""What 5,000 declared nodes cost the elastic daemon and slurmctld, and a launch of 1,000 of them:

    .venv/bin/python -m tests.bench.scale --nodes 5000 --launch 1000

Nothing boots: slurmctld is real and has all the nodes, the elastic daemon is real, and the cloud behind it
answers at once. There are four parts, each also measured with a tenth of its size:

1. planning: the resume file's parsing, groups and their launch calls, over a cloud in this process;
2. a reconcile pass: scontrol, the parsing of its output, the cloud's list, the plan, and the actions;
3. the daemon's memory, above an interpreter that does nothing;
4. slurmctld's start, and the way from ResumeProgram's start to the cloud's launch call.

Times are medians in milliseconds. About a minute on two cores. Exits 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from node.design.folders import Folders
from node.design.model import ClusterDesign, Partition, Settings, SlurmSettings
from node.design.sites import LocalSite
from node.elastic import programs
from node.elastic.daemon import Elastic
from node.elastic.driver import (
    LAUNCH_THREADS,
    AvailableCapacity,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.launch_groups import launch_groups
from node.slurm.answers import NodeParser, parse_nodes
from node.slurm.hostlist import fold
from node.slurm.resume_request import parse_resume
from node.slurm.topology import Place
from node.system import rpc
from node.system.codec import to_json
from operations.local.run_directory import FIRST_PORT
from tests.bench.figures import ROOT, Targets, median_ms, parser
from tests.node.slurm_cluster import SlurmCluster, design
from tests.support.checkout import until
from tests.support.doubles import FakeControl, settings

RUNNING = MachineState.RUNNING
PARTITIONS = 5
PLANNED_MS = 500.0
PASS_MS = 1000.0
MEMORY_MIB = 100.0
PORTS = range(4000, FIRST_PORT)
"""More than other tests' clusters may use, because each declared node has a port. No node listens there."""
PRINTS = r"^  a pass, \d+ nodes, \d+ machines, all well: [\d.]+ ms(?s:.)*^missed: nothing$"
TIMERS = SlurmSettings(suspend_time=3600, resume_timeout=900, reconcile_interval=2.0)


class InstantCloud:
    """A driver whose machines run as soon as they are asked for. It counts its calls."""

    launch_threads = LAUNCH_THREADS

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.launches: list[LaunchGroup] = []
        self.machines: list[Machine] = []

    def launch(self, group: LaunchGroup) -> LaunchResult:
        self.calls["launch"] += 1
        self.launches.append(group)
        return LaunchResult({node: f"m-{node}" for node in group.nodes})

    def terminate(self, ids: Sequence[str]) -> None:
        self.calls["terminate"] += 1

    def list(self) -> list[Machine]:
        self.calls["list"] += 1
        return list(self.machines)

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        self.calls["available_capacity"] += 1
        return AvailableCapacity(count)

    def places(self, machines: Sequence[Machine]) -> dict[str, Place]:
        self.calls["places"] += 1
        return {}


class CloudServer:
    """The local cloud's API without machines, for the real daemon and its real driver."""

    def __init__(self, socket: str) -> None:
        self.launched: list[tuple[float, int]] = []
        """When (seconds since the epoch) each launch call came, and for how many machines."""
        self.machines: list[dict[str, Any]] = []
        self._server = rpc.Server(socket, self._handle)
        threading.Thread(target=self._server.serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "launch":
            now = time.time()
            self.launched.append((now, len(params["names"])))
            tags = params["tags"]
            made = [
                {"id": f"m-{node}", "node": node, "state": "running", "launched": now, "zone": None}
                | {"notice": None, "tags": tags | {"node": node}}
                for node in params["names"]
            ]
            self.machines += made
            return {"machines": made, "failures": []}
        if method == "available_capacity":
            return {"count": params["count"], "code": None, "message": None}
        if method == "terminate":
            gone = set(params["ids"])
            self.machines = [m for m in self.machines if m["id"] not in gone]
            return {"machines": []}
        return {"machines": self.machines}


def wide(nodes: int) -> ClusterDesign:
    """A local design whose nodes are spread over some partitions."""
    each = nodes // PARTITIONS
    parts = [Partition(f"wide{i}", "local.small", 2, 1000, 0, each, default=not i) for i in range(PARTITIONS)]
    return design(*parts, slurm=TIMERS)


def resume_file(design: ClusterDesign, launch: int) -> str:
    """A resume file: half of the nodes for one job, a quarter for another, the rest for jobs of one node."""
    first, second, *others = (p.nodes() for p in design.partitions)
    single = launch - launch // 2 - launch // 4
    wishes = [first[: launch // 2], second[: launch // 4]]
    wishes += [[others[i % len(others)][i // len(others)]] for i in range(single)]
    jobs = [{"job_id": 100 + i, "nodes": fold(nodes)} for i, nodes in enumerate(wishes)]
    return json.dumps({"all_nodes": fold(n for nodes in wishes for n in nodes), "jobs": jobs})


def planning(targets: Targets, design: ClusterDesign, launch: int, repeat: int, folder: Path) -> float:
    """Part 1. Returns the milliseconds of a whole request, from the file's text to the last launch call."""
    text = resume_file(design, launch)
    pure = median_ms(lambda: launch_groups(parse_resume(text), design, "r"), repeat)
    calls, _ = launch_groups(parse_resume(text), design, "r")
    cloud = InstantCloud()
    elastic = Elastic(settings(folder, design), FakeControl(), cloud, folder)
    numbers = iter(range(repeat))

    def request() -> None:
        wanted = len(cloud.launches) + len(calls)
        identity = f"r{next(numbers)}"
        elastic.process({"id": identity, "program": "resume", "nodes": "", "resume_file": text})
        until(lambda: len(cloud.launches) >= wanted, 60, "the launches", 0.0002)

    with quiet():
        whole = median_ms(request, repeat)
        until(lambda: not elastic.launcher.busy(), 60, "the launches' ends", 0.01)
    asked = {name: number / repeat for name, number in cloud.calls.items()}
    print(
        f"  {launch:5d} nodes in {len(calls)} groups: parsed and grouped {pure:.1f} ms, to the last launch "
        f"call {whole:.1f} ms ({whole / launch * 1000:.1f} us a node); calls a request: {asked}"
    )
    targets.exactly("launch calls a request", round(asked["launch"]), len(calls))
    return whole


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the daemon's log, which is not part of the figures."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


class Scale:
    """A real slurmctld with all nodes of a design, and the elastic daemon that its own programs ask."""

    def __init__(self, slurm: SlurmCluster) -> None:
        self.slurm = slurm
        socket = str(slurm.root / "agent.sock")
        site = dataclasses.replace(
            slurm.site, cloud=LocalSite(socket), python=os.path.realpath(sys.executable)
        )
        self.settings = Settings(slurm.settings.design, site)
        self.cloud = CloudServer(socket)
        self.stamp = slurm.root / "resumed"
        code = Path(Folders(self.settings).code)
        (code / "node").symlink_to(ROOT / "node")
        Path(Folders(self.settings).elastic).mkdir(parents=True, exist_ok=True)
        self._file = slurm.root / "settings.json"
        self._file.write_text(json.dumps(to_json(self.settings)))
        programs.write(self.settings, self._file)
        resume = code / "bin" / "resume"
        resume.rename(code / "bin" / "resume-itself")
        resume.write_text(f'#!/bin/sh\n/bin/date +%s.%N >{self.stamp}\nexec {code}/bin/resume-itself "$@"\n')
        resume.chmod(0o755)
        service = programs.daemon_service(self.settings, self._file)
        with (slurm.root / "elastic.log").open("wb") as log:
            self.daemon = subprocess.Popen(
                service.argv, env={**slurm.environment(), **service.env}, stdout=log, stderr=log
            )
        until(lambda: Path(Folders(self.settings).daemon_socket).exists(), 20, "the daemon")

    def close(self) -> None:
        self.daemon.kill()
        self.daemon.wait()
        self.cloud.close()

    def start_of_controller(self) -> float:
        """Seconds from slurmctld's start, with its saved state, until `scontrol` lists all nodes."""
        self.slurm.stop_node("slurmctld")
        begun = time.monotonic()
        self.slurm.start_controller()
        assert len(self.slurm.control.nodes()) == sum(p.max for p in self.settings.design.partitions)
        return time.monotonic() - begun

    def launch(self, count: int, partition: str) -> tuple[float, float]:
        """Seconds from sbatch to ResumeProgram's start, and from there to the cloud's launch call."""
        before = len(self.cloud.launched)
        self.stamp.unlink(missing_ok=True)
        begun = time.time()
        self.slurm.run("sbatch", f"--nodes={count}", f"--partition={partition}", "--wrap", "sleep 9")
        until(lambda: len(self.cloud.launched) > before, 60, "the launch", 0.01)
        called = float(self.stamp.read_text())
        launched, machines = self.cloud.launched[before]
        assert machines == count, self.cloud.launched
        return called - begun, launched - called


def memory(pid: int, key: str = "VmRSS") -> float:
    """Return the memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare_interpreter() -> float:
    """Return the MiB of an interpreter that has done nothing: the local cloud needs no client library."""
    command = [os.path.realpath(sys.executable), "-I", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command) as child:
        try:
            time.sleep(0.5)
            return memory(child.pid)
        finally:
            child.kill()


def daemon(targets: Targets, scale: Scale, launch: int, seconds: float) -> None:
    """Parts 3 and 4: the real programs and the real daemon."""
    controller = scale.start_of_controller()
    print(f"  slurmctld's start until it has told all nodes: {controller * 1000:.0f} ms")
    small = scale.launch(launch // 10, "wide1")
    large = scale.launch(launch, "wide0")
    for count, (scheduled, launched) in ((launch // 10, small), (launch, large)):
        print(
            f"  {count:5d} nodes: sbatch to ResumeProgram {scheduled * 1000:.0f} ms, "
            f"ResumeProgram to the launch call {launched * 1000:.0f} ms"
        )
    before, begun = cpu_seconds(scale.daemon.pid), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds(scale.daemon.pid) - before) / (time.monotonic() - begun)
    print(f"  CPU of the daemon while {launch} nodes boot and a prolog waits: {share:.0%} of one core")
    bare = bare_interpreter()
    now, most = memory(scale.daemon.pid), memory(scale.daemon.pid, "VmHWM")
    print(f"  bare interpreter {bare:.1f} MiB, daemon {now:.1f} MiB, at most {most:.1f} MiB")
    targets.below("daemon's memory above the interpreter, at most", most - bare, MEMORY_MIB, "MiB")


def reconciling(targets: Targets, scale: Scale, launch: int, repeat: int) -> None:
    """Part 2, against the slurmctld whose nodes are on their way up."""
    control = scale.slurm.control
    text = control.run("scontrol", "show", "nodes", "--oneliner")
    lines = text.splitlines(keepends=True)
    tenth = "".join(lines[: len(lines) // 10])
    small, large = (median_ms(lambda t=t: parse_nodes(t), repeat) for t in (tenth, text))  # type: ignore[misc]
    parse = NodeParser()
    parse(lines)
    again = median_ms(lambda: parse(lines), repeat)
    ratio = (large / len(lines)) / (small / (len(lines) // 10))
    asked = median_ms(lambda: control.run("scontrol", "show", "nodes", "--oneliner"), repeat)
    print(
        f"  scontrol {asked:.0f} ms, its text parsed {large:.0f} ms for {len(lines)} nodes, {again:.1f} ms "
        f"if none has changed, {small:.1f} ms for a tenth: a node costs {ratio:.2f} times as much; squeue "
        f"and its text {median_ms(control.jobs, repeat):.0f} ms"
    )
    passes(targets, scale, launch, repeat)


def passes(targets: Targets, scale: Scale, launch: int, repeat: int) -> None:
    """Time whole passes: with nothing to do, with machines to end, with nodes to power down."""
    lib = scale.slurm.root / "own"
    lib.mkdir()
    cloud = InstantCloud()
    elastic = Elastic(scale.settings, scale.slurm.control, cloud, lib)
    reconciler = elastic.reconciler
    declared = sum(p.max for p in scale.settings.design.partitions)
    cloud.machines = [Machine(m["id"], m["node"], RUNNING, time.time()) for m in scale.cloud.machines]
    with quiet():
        well = median_ms(reconciler.once, repeat)
    targets.below(f"a pass, {declared} nodes, {len(cloud.machines)} machines, all well", well, PASS_MS, "ms")
    # Everything counts as seen for long enough: every pass has something to do about each of these.
    reconciler.policy = dataclasses.replace(reconciler.policy, settle=0.0)
    mine = cloud.machines
    spare = scale.settings.design.partitions[2].nodes()[:launch]
    cloud.machines = [*mine, *(Machine(f"o-{n}", n, RUNNING, time.time()) for n in spare)]
    with quiet():
        ending = median_ms(reconciler.once, repeat)
    calls = cloud.calls["terminate"] / repeat
    targets.below(f"a pass that ends {launch} orphans in {calls:g} call", ending, PASS_MS, "ms")
    cloud.machines = [dataclasses.replace(m, failure="step mounts: timed out") for m in mine]
    with quiet():
        back = median_ms(reconciler.once, 1)
    targets.below(f"a pass that gives {len(mine)} failed boots back", back, PASS_MS, "ms")


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, nodes=100, launch=20, repeat=1, seconds=1.0)
    arguments.add_argument("--nodes", type=int, default=5000, help="declared, in five partitions")
    arguments.add_argument("--launch", type=int, default=1000, help="at most a partition's nodes")
    arguments.add_argument("--repeat", type=int, default=7)
    arguments.add_argument("--seconds", type=float, default=8.0, help="of the daemon's CPU time")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    if not 10 <= chosen.launch <= chosen.nodes // PARTITIONS:
        options().error(f"--launch: 10 to {chosen.nodes // PARTITIONS}, the nodes of one of five partitions")
    targets = Targets(timed=not chosen.quick)
    made = wide(chosen.nodes)
    print(f"planning, {chosen.nodes} declared nodes")
    with tempfile.TemporaryDirectory() as folder:
        small = planning(targets, made, chosen.launch // 10, chosen.repeat, Path(folder))
        large = planning(targets, made, chosen.launch, chosen.repeat, Path(folder))
    print(f"  a node of the large launch costs {large / 10 / small:.2f} times one of the small")
    targets.below(f"a launch of {chosen.launch} nodes, planned", large, PLANNED_MS, "ms")
    with SlurmCluster(made, ports=PORTS) as slurm:
        scale = Scale(slurm)
        try:
            print("the real slurmctld, programs and daemon", flush=True)
            daemon(targets, scale, chosen.launch, chosen.seconds)
        finally:
            scale.close()
        print("reconciling")
        reconciling(targets, scale, chosen.launch, chosen.repeat)
    return targets.status()


if __name__ == "__main__":
    sys.exit(main())
