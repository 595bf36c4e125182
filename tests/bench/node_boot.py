"""From `sbatch` to the script on a node that boots, and where that time goes:

    .venv/bin/python -m tests.bench.node_boot --boots 4 --against ../other --units
    .venv/bin/python -m tests.bench.node_boot --releases bookworm bookworm-source trixie forky
    .venv/bin/python -m tests.bench.node_boot --boots 8 --accounting process

It needs root. It brings up the stack of container machines from this checkout, and with `--against` a second
one from another checkout, boots a node of each in turn, so that both meet the same load, and removes them.
With `--releases` there is a stack of this checkout for each of tests/cluster/test_releases.py's names. It
prints a line for each boot: the moments in seconds after `sbatch`, the CPU seconds that the node's processes
have taken by the script's start, and the machine's load. `--units` adds the slowest parts of each boot, as
systemd and cloud-init report them.

With `--accounting` it compares heads instead of nodes, with and without accounting, of process or container
machines: the seconds of their first boot and of further ones, the memory that MariaDB and slurmdbd take, and
the seconds from `sbatch` to the script of `--jobs` jobs in turns on a node that is up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localcloud import nspawn
from node.design.model import CONTAINER, PROCESS
from node.system.processes import ProcessId, descendants
from operations.local.run_directory import RunDirectory
from tests.bench.figures import ROOT, in_turns, parser, ratios, spread
from tests.support.checkout import Checkout, until
from tests.support.mishaps import end

MOST = 16
PRINTS = r"^this, median of \d+: .*script \d+\.\d\d.*(?s:.)*^left behind: nothing$"
STACK = """
config:
  slurm-stacks:cluster:
    provider: local
    local: {{isolation: {isolation}{suite}}}
    partitions:
      - {{name: debug, instance_type: local.small, nodes: {{max: {most}}}, default: true}}
    slurm: {{suspend_time: 600{slurm}}}
  slurm-stacks:benchmark: {{enabled: false}}
"""
SOURCE = "-source"
"""The end of a release's name whose Slurm is built from Debian 13's source package."""
SHORT = "#!/bin/sh\ndate +%s.%N >start-$SLURM_JOB_ID.new\n"
SHORT += "mv start-$SLURM_JOB_ID.new start-$SLURM_JOB_ID\n"
SCRIPT = "#!/bin/sh\ndate +%s.%N >$SLURM_SUBMIT_DIR/start-$SLURM_JOB_ID\nwhile :; do sleep 1; done\n"
TICKS = os.sysconf("SC_CLK_TCK")
CLOUD_INIT = ("cloud-init.service", "cloud-init-network.service", "cloud-init-main.service")
"""The unit's names before and since cloud-init 24.3."""
NOTICED_SECONDS = 0.05


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, boots=1)
    arguments.add_argument("--boots", type=int, default=4, choices=range(1, MOST + 1), metavar="N")
    arguments.add_argument("--against", type=Path, help="another checkout")
    arguments.add_argument("--releases", nargs="+", metavar="SUITE", help=f"suites, also SUITE{SOURCE}")
    arguments.add_argument("--units", action="store_true", help="the slowest parts too")
    arguments.add_argument(
        "--accounting", choices=(PROCESS, CONTAINER), help="heads with and without accounting"
    )
    arguments.add_argument("--jobs", type=int, default=20, help="with --accounting: the jobs of each cluster")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    if chosen.accounting:
        return heads(chosen.accounting, chosen.boots, chosen.jobs)
    kinds = {name: (stack(name), ROOT) for name in chosen.releases or ()} or {"this": (stack(), ROOT)}
    if chosen.against:
        kinds["other"] = (stack(), chosen.against.resolve())
    with tempfile.TemporaryDirectory() as folder:
        checkouts = {n: Checkout(Path(folder) / n, text, source=root) for n, (text, root) in kinds.items()}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
        try:
            for name, checkout in checkouts.items():
                began = time.monotonic()
                checkout.cluster("up", check=True, timeout=4800)
                print(f"{name}: up after {time.monotonic() - began:.1f} s", flush=True)
            for number, name in in_turns(list(checkouts), chosen.boots):
                moments = boot(checkouts[name], number, units=chosen.units)
                found[name].append(moments)
                print(f"{name} {number}: {shown(moments)}; load {os.getloadavg()[0]:.1f}", flush=True)
        finally:
            left = [line for checkout in checkouts.values() for line in checkout.close()]
        for name, boots in found.items():
            parts = [what for what in boots[0] if all(what in moments for moments in boots)]
            middle = {what: statistics.median(moments[what] for moments in boots) for what in parts}
            print(f"{name}, median of {len(boots)}: {shown(middle)}")
        print(f"left behind: {left or 'nothing'}")
    return 1 if left else 0


def heads(isolation: str, boots: int, jobs: int) -> int:
    """Boot heads with and without accounting in turns, then start jobs, and print how long that takes."""
    texts = {name: f", accounting: {value}" for name, value in (("without", "false"), ("with", "true"))}
    with tempfile.TemporaryDirectory() as folder:
        checkouts = {
            name: Checkout(Path(folder) / name, stack(isolation=isolation, slurm=text))
            for name, text in texts.items()
        }
        first: dict[str, float] = {}
        later: dict[str, list[float]] = {name: [] for name in checkouts}
        starts: dict[str, list[float]] = {name: [] for name in checkouts}
        try:
            for name, checkout in checkouts.items():
                checkout.cluster("up", check=True, timeout=4800)
                first[name] = head_seconds(RunDirectory(checkout.run_directory))
            for number, name in in_turns(list(checkouts), boots):
                run = RunDirectory(checkouts[name].run_directory)
                end(record(run, "controller")["process"]["pid"])
                checkouts[name].cluster("up", check=True, timeout=600)
                later[name].append(head_seconds(run))
                print(f"{name} {number}: {later[name][-1]:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
            memory = rss(RunDirectory(checkouts["with"].run_directory))
            for number, name in in_turns(list(checkouts), jobs + 1):
                seconds = job_seconds(checkouts[name])
                if number:  # the first one has brought the node up
                    starts[name].append(seconds)
        finally:
            left = [line for checkout in checkouts.values() for line in checkout.close()]
    for name, values in later.items():
        print(f"{name} accounting: first boot {first[name]:.2f} s, later {spread(values, 2)} s")
        print(f"{name} accounting: sbatch to script {spread(starts[name], 2)} s")
    print(f"ratio of later boots {spread(ratios(later['with'], later['without']), 2)}")
    # Slurm's tick of a second spreads single starts too much for a ratio of each pair.
    for what, middle in (("medians", statistics.median), ("means", statistics.fmean)):
        ratio = middle(starts["with"]) / middle(starts["without"])
        print(f"ratio of {what}, sbatch to script, of {jobs} jobs each: {ratio:.3f}")
    print(f"memory, MiB: {', '.join(f'{name} {mib:.0f}' for name, mib in memory.items())}")
    print(f"left behind: {left or 'nothing'}")
    return 1 if left else 0


def job_seconds(checkout: Checkout) -> float:
    """Return the seconds from the start of `sbatch` to the script of a job that has begun to run.

    Slurm's schedulers tick every second, so the phase is another one each time.
    """
    run = RunDirectory(checkout.run_directory)
    folder = run.shared / "root" if run.containers else checkout.folder
    (folder / "short").write_text(SHORT)
    within = "/home/root" if run.containers else str(folder)
    time.sleep(random.uniform(0, 1))
    begun = time.time()
    words = ("--parsable", "-o/dev/null", f"--chdir={within}", "-wdebug-0", f"{within}/short")
    identity = checkout.execute("sbatch", *words).strip()
    mark = folder / f"start-{identity}"
    until(lambda: mark.exists() and mark.stat().st_size, 300, f"job {identity}", 0.01)
    seconds = float(mark.read_text()) - begun
    until(lambda: not checkout.execute("squeue", "-h", "-j", identity, check=False).strip(), 60, "its end")
    return seconds


def head_seconds(run: RunDirectory) -> float:
    """Return the seconds that the steps of the controller's last boot took."""
    report = run.report("controller")
    return float(max(step["started"] + step["seconds"] for step in report["steps"]) - report["started"])


def rss(run: RunDirectory) -> dict[str, float]:
    """Return the memory of the accounting's daemons in MiB."""
    found: dict[str, float] = {}
    for pid in run.pids():
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name in ("mariadbd", "slurmdbd"):
            found[name] = os.sysconf("SC_PAGESIZE") * stat(pid)[21] / 2**20
    return found


def stack(release: str = "", isolation: str = CONTAINER, slurm: str = "") -> str:
    """Return the stack file of a release, or of this machine's own.

    Args:
        slurm: more of the section `slurm`.
    """
    suite = release.removesuffix(SOURCE)
    return STACK.format(
        suite=f", suite: {suite}" if suite else "",
        slurm=", source: debian-13" if release.endswith(SOURCE) else slurm,
        isolation=isolation,
        most=MOST,
    )


def shown(moments: dict[str, float]) -> str:
    return ", ".join(f"{what} {seconds:.2f}" for what, seconds in moments.items())


def boot(checkout: Checkout, number: int, *, units: bool) -> dict[str, float]:
    """Start a job on a node that is off. Returns the moments of its boot, in seconds after `sbatch`."""
    run, node = RunDirectory(checkout.run_directory), f"debug-{number}"
    home = run.shared / "root"
    job = home / "job"
    job.write_text(SCRIPT)
    begun = time.time()
    identity = checkout.execute("sbatch", "--parsable", "-o/dev/null", "-w", node, "job").strip()
    mark = home / f"start-{identity}"
    until(lambda: mark.exists() and mark.stat().st_size, 300, f"job {identity}", 0.02)
    launcher = ProcessId(**record(run, node)["process"])
    first = nspawn.leader(launcher)
    assert first is not None
    report = json.loads((run.bucket / "boot" / f"{node}.json").read_text())
    moments = {
        "launched": record(run, node)["launched"],
        "systemd": time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + stat(first)[19] / TICKS,
        "cloud-init": began(launcher, *CLOUD_INIT),
        "our unit": began(launcher, "slurm-stacks-boot.service"),
        "steps": report["started"],
        **{
            step["name"]: step["started"] + step["seconds"]
            for step in report["steps"]
            if step["seconds"] > NOTICED_SECONDS
        },
        "script": float(mark.read_text()),
    }
    # A process's CPU time includes that of the children that it has waited for; living ones are added.
    cpu = sum(sum(stat(pid)[11:15]) for pid in (first, *descendants(first))) / TICKS
    if units:
        for command in (("systemd-analyze", "--no-pager", "blame"), ("cloud-init", "analyze", "show")):
            print(nspawn.execute(launcher, *command).output[:3000])
    checkout.execute("scancel", identity)
    return {what: at - begun for what, at in moments.items()} | {"CPU": cpu}


def record(run: RunDirectory, node: str) -> dict[str, Any]:
    """Return the local cloud's record of the running machine of this name."""
    there = json.loads((run.cloud / "machines.json").read_text())["machines"]
    return next(one for one in there if one["node"] == node and one["state"] == "running")


def stat(pid: int) -> list[int]:
    """Return the numbers of /proc/PID/stat from the third field on; the state, a letter, is replaced by 0."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, fields[1:])]


def began(launcher: ProcessId, *units: str) -> float:
    """Return when the process of the first of these units that has run was started."""
    words = ("show", "--value", "--timestamp=us+utc", "--property=ExecMainStartTimestamp")
    for unit in units:
        shown = nspawn.execute(launcher, "systemctl", *words, unit).output.split()
        if len(shown) > 2:
            break
    moment = datetime.strptime(" ".join(shown[1:3]), "%Y-%m-%d %H:%M:%S.%f")
    return moment.replace(tzinfo=UTC).timestamp()


if __name__ == "__main__":
    sys.exit(main())
