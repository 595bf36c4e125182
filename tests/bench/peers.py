"""What our elastic core costs beside the peers' programs, on one stand-in of EC2 and one of Compute Engine:

    .venv/bin/python -m tests.bench.peers
    .venv/bin/python -m tests.bench.peers --slurm-gcp ../scripts --rows 'ec2:*' gcp:launch-1000 --runs 3

It installs aws-parallelcluster-node of a fixed version from PyPI into a temporary environment. slurm-gcp is
not on PyPI: `--slurm-gcp` names the folder with its resume.py and slurmsync.py, whose requirements.txt is
installed likewise. In the public repository GoogleCloudPlatform/cluster-toolkit it is community/modules/
scheduler/schedmd-slurm-gcp-v6-controller/modules/slurm_files/scripts. Without it its column says so.

Each sample has a real slurmctld of its own, with 5,000 declared nodes of which none boots. CPU seconds are
those of all processes with their children, without slurmctld's own, which stand beside them.
`docs/internals/peers.md` says how to read the table. All rows with five runs take three hours.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.slurm import version
from node.system.waiting import wait_at_most
from tests.bench.figures import ROOT, in_turns, parser
from tests.support.checkout import until
from tests.support.cpu_meter import Meter, Spent, rss
from tests.support.peer_sides import PATIENCE, Cloud, ParallelCluster, Side, SlurmGcp, rpcs

PRINTS = r"^\| ec2:launch-100 (?s:.)*^\| gcp:launch-100 "
PARALLELCLUSTER = {False: "3.15.1", True: "3.16.1"}
"""The version of aws-parallelcluster-node. From 3.16 on it writes the InstanceId of nodes, which Slurm
has from 24.05 on."""
NEW_SLURM = (24, 5)
ALL_AT_ONCE = (("^SchedulerParameters=", "SchedulerParameters=default_queue_depth=10000,max_sched_time=7,"),)
"""Has slurmctld start a whole array in one of its cycles, so that it asks for all nodes at once."""
ENDS_SECONDS = 90.0
"""How long the ends of cancelled jobs are watched."""
POLL = 2
"""Seconds in which ours answers; a peer whose daemon looks so often does the same."""


# --- one sample --------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What a piece of work took.

    Attributes:
        cpu: CPU seconds of the product: its daemon, the programs that Slurm calls, all of their children.
        slurm: CPU seconds of slurmctld itself.
        memory: MiB of all of the product's processes at one time, at most; each shared page counts once.
        calls: API calls, by name.
        rpcs: What slurmctld was asked for, by sdiag's names.
        seconds: By the clock.
        left: Jobs that Slurm still shows at its end, though they were cancelled.
    """

    cpu: float
    slurm: float = 0.0
    programs: float = 0.0
    memory: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    rpcs: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    left: int = 0


class Watch:
    """Measures a product from one moment to another."""

    def __init__(self, side: Side) -> None:
        self._side = side
        first = rpcs(side.ask("sdiag"))
        self._rpcs = rpcs(side.ask("sdiag"))
        # What a call of sdiag itself adds.
        self._noise = self._rpcs - first
        self._began = time.monotonic()
        side.cloud.tell("reset")
        self._spent = side.meter.read()
        self.submitted: Counter[str] = Counter()

    def done(self, memory: float) -> Figures:
        """Return what was spent since."""
        side = self._side
        spent: Spent = side.meter.read() - self._spent
        seconds = time.monotonic() - self._began
        asked = rpcs(side.ask("sdiag")) - self._rpcs - self._noise - self.submitted
        return Figures(
            spent.product, spent.slurm, spent.programs, memory, Counter(side.cloud.calls()), asked, seconds
        )


def submit(side: Side, watch: Watch, *words: str) -> str:
    """Submit a job or an array of jobs to the first partition. Returns its id."""
    watch.submitted["REQUEST_SUBMIT_BATCH_JOB"] += 1
    always = ("--parsable", f"--partition={side.partition(0)}", "--output=/dev/null")
    return side.run("sbatch", *always, *words, "--wrap", "sleep 9").strip()


def all_launched(side: Side, count: int) -> None:
    until(lambda: side.cloud.living() >= count, PATIENCE, f"{side.title}: {count} machines", 0.05)
    until(lambda: side.launched(count), PATIENCE, f"{side.title}: the end of its launch", 0.02)


Sample = dict[str, Figures]
"""What follows the row's name in the table -> its figures."""


def ready(side: Side) -> None:
    """Have the product as it is between two requests: our daemon serves, no program of a peer runs."""
    if type(side) is Side:
        side.start_daemon()


def settled(side: Side) -> None:
    """Have our daemon look at everything once, as it does each half minute.

    Until its first look it lists the machines before each launch: a daemon before it may have made some.
    """
    if type(side) is Side:
        side.cloud.tell("reset")
        until(lambda: bool(side.cloud.calls()), PATIENCE, "the daemon's first look")
        time.sleep(1)


def launch(side: Side, count: int) -> Sample:
    """One job: from its submission until all machines are asked for and the product knows of them."""
    ready(side)
    watch = Watch(side)
    with side.meter.peak() as peak:
        submit(side, watch, f"--nodes={count}")
        all_launched(side, count)
        return {"": watch.done(peak())}


def passes(side: Side, count: int, number: int = 3) -> Sample:
    """Looks at everything, with machines behind a part of the nodes; the first one is left out."""
    ready(side)
    submit(side, Watch(side), f"--nodes={count}")
    all_launched(side, count)
    side.cloud.tell("reset")
    watch = Watch(side)
    found = side.passes(number + 1)
    slurm = watch.done(0)
    each = Counter({name: round(calls / (number + 1), 1) for name, calls in slurm.calls.items()})
    asked = Counter({name: round(calls / (number + 1), 1) for name, calls in slurm.rpcs.items()})
    cpu = statistics.median(found["seconds"][1:])
    return {"": Figures(cpu, slurm.slurm / (number + 1), 0, found["memory"], each, asked)}


def jobs(side: Side, count: int, batches: int) -> Sample:
    """Jobs of one node, in one array or in arrays that come each second; and then the ends of all of them."""
    ready(side)
    if batches > 1:
        settled(side)
    watch, arrays = Watch(side), []
    with side.meter.peak() as peak:
        for number in range(batches):
            began = time.monotonic()
            arrays += [submit(side, watch, "--nodes=1", "--exclusive", f"--array=1-{count // batches}")]
            time.sleep(max(0.0, 1 - (time.monotonic() - began)) if number < batches - 1 else 0)
        all_launched(side, count // batches * batches)
        asked = watch.done(peak())
        watch = Watch(side)
        wait_at_most(lambda: cancelled(side, arrays) and not side.meter.programs(), ENDS_SECONDS, 2.0)
        return {"": asked, ", and their ends": dataclasses.replace(watch.done(peak()), left=jobs_left(side))}


def cancelled(side: Side, jobs: Sequence[str]) -> bool:
    """Cancel jobs. Returns whether none is left.

    A slurmctld that starts a program for each end may not answer in time, which is no error here.
    """
    with contextlib.suppress(subprocess.CalledProcessError):
        if not jobs_left(side):
            return True
        side.run("scancel", *jobs)
    return False


def jobs_left(side: Side) -> int:
    return len(side.ask("squeue", "--noheader", "--array").splitlines())


def window(side: Side, seconds: float, jobs_of: tuple[int, int] | None) -> Sample:
    """A minute of a product's daemon.

    Args:
        seconds: How long it is watched. The figures are told as a minute's.
        jobs_of: The jobs that wait for their nodes to boot, and the nodes of each; `None` means no job.
    """
    side.start_daemon()
    if jobs_of is not None:
        number, nodes = jobs_of
        watch = Watch(side)
        array = [f"--array=1-{number}"] if number > 1 else []
        submit(side, watch, f"--nodes={nodes}", "--exclusive", *array)
        all_launched(side, number * nodes)
    with side.meter.peak(1.0) as peak:
        watch = Watch(side)
        time.sleep(seconds)
        found = watch.done(peak())
    scale = 60 / seconds
    return {"": dataclasses.replace(found, cpu=found.cpu * scale, slurm=found.slurm * scale)}


def resident(side: Side, seconds: float) -> Sample:
    """The daemon's memory some time after its start; without a daemon that of a look, at most."""
    side.start_daemon()
    with side.meter.peak(0.1) as peak:
        if isinstance(side, SlurmGcp):
            side.sync()
            return {"": Figures(0.0, memory=peak())}
        time.sleep(seconds)
        return {"": Figures(0.0, memory=max(map(rss, side.meter.daemons)), seconds=seconds)}


# --- rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: Its name on the command line, without the cloud's.
        options: (pattern, text) that change slurm.conf for every product.
        pace: Whether the peer's own pace of asking for nodes counts, which is slower than ours.
        polls: Whether the peer's daemon takes part, whose pace counts.
        nodes: How many are declared, where it is not the usual number.
    """

    name: str
    what: str
    measure: Callable[[Side], Sample]
    options: Sequence[tuple[str, str]] = ()
    pace: bool = False
    polls: bool = False
    nodes: int | None = None


def rows(chosen: argparse.Namespace) -> list[Row]:
    """Return the rows of one cloud."""
    many, seconds, pieces = chosen.launch, chosen.seconds, chosen.trickle
    few = max(1, many // 10)
    return [
        Row("launch-100", f"one job of {few} nodes", lambda side: launch(side, few)),
        Row("launch-1000", f"one job of {many} nodes", lambda side: launch(side, many)),
        Row("pass", f"a pass with {many} up of {chosen.nodes}", lambda side: passes(side, many)),
        Row(
            "jobs-at-once",
            f"{many} jobs of one node, asked at once",
            lambda side: jobs(side, many, 1),
            ALL_AT_ONCE,
        ),
        Row(
            "jobs-trickling",
            f"{many} jobs of one node, submitted over {pieces} s",
            lambda side: jobs(side, many, pieces),
            pace=True,
        ),
        Row(
            "boot-one",
            f"a minute of boot, one job of {many} nodes waits",
            lambda side: window(side, seconds, (1, many)),
            polls=True,
        ),
        Row(
            "boot-many",
            f"a minute of boot, {many} jobs of one node wait",
            lambda side: window(side, seconds, (many, 1)),
            ALL_AT_ONCE,
            polls=True,
        ),
        Row(
            "idle",
            f"a minute with nothing to do, {chosen.nodes} declared",
            lambda side: window(side, seconds, None),
            polls=True,
        ),
        Row(
            "memory",
            "the daemon on a cluster of 10 nodes",
            lambda side: resident(side, min(seconds, 35.0)),
            nodes=10,
        ),
    ]


PACES: dict[str, list[tuple[str, str]]] = {
    "aws": [("power_save_interval=1", "power_save_interval=1,power_save_min_interval=30")],
    "gcp": [("power_save_interval=1", "power_save_interval=10")],
}
"""How often slurmctld calls ResumeProgram in the peers' own slurm.conf: ParallelCluster's has a least
interval of 30 s, and slurm-gcp leaves Slurm's default of 10 s."""
CLOUDS = {"ec2": "aws", "gcp": "gcp"}
OURS, PEER, EQUAL = "ours", "the peer's", "the peer's at our pace"


def sides(row: Row, has_peer: bool) -> list[str]:
    """Return who is measured in a row."""
    if not has_peer:
        return [OURS]
    return [OURS, PEER, EQUAL] if row.pace or row.polls else [OURS, PEER]


@dataclass
class Peers:
    """The peers' interpreters, and slurm-gcp's scripts; `None` where they are not there.

    Attributes:
        version: Of aws-parallelcluster-node.
    """

    aws: Path | None = None
    gcp: Path | None = None
    scripts: Path | None = None
    version: str = ""

    def has(self, cloud: str) -> bool:
        return (self.aws if cloud == "aws" else self.gcp) is not None

    def document(self) -> Path | None:
        """Return the discovery document of Compute Engine's API in slurm-gcp's environment."""
        if self.gcp is None:
            return None
        there = "lib/python*/site-packages/googleapiclient/discovery_cache/documents/compute.beta.json"
        return next(self.gcp.parents[1].glob(there))

    def make(self, who: str, row: Row, cloud: Cloud, meter: Meter, nodes: int) -> Side:
        """Return a product as a row has it."""
        nodes, options = row.nodes or nodes, list(row.options)
        if who == OURS:
            return Side(cloud, meter, nodes, options)
        poll = POLL if who == EQUAL and row.polls else None
        if row.pace and who == PEER:
            options += PACES[cloud.name]
        if cloud.name == "aws":
            assert self.aws is not None
            return ParallelCluster(cloud, meter, nodes, options, python=self.aws, poll=poll)
        assert self.gcp is not None
        assert self.scripts is not None
        return SlurmGcp(cloud, meter, nodes, options, python=self.gcp, poll=poll, scripts=self.scripts)


def say(text: str) -> None:
    """Print what goes on: a sample takes half a minute or more, and a stand-in some seconds to start."""
    print(text, file=sys.stderr, flush=True)


def measured(
    row: Row, peers: Peers, cloud: Cloud, meter: Meter, chosen: argparse.Namespace
) -> dict[str, dict[str, list[Figures]]]:
    """Measure a row of one cloud in turns. Returns part of the row -> who -> the samples."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for number, who in in_turns(sides(row, peers.has(cloud.name)), chosen.runs):
        say(f"  {row.name} {number + 1}, {who}: a slurmctld with its nodes starts")
        with peers.make(who, row, cloud, meter, chosen.nodes) as side:
            sample = row.measure(side)
        for part, figures in sample.items():
            found.setdefault(part, {}).setdefault(who, []).append(figures)
            note = f"{row.name}{part} {number + 1}, {who}: {figures.cpu:.2f} s, {figures.memory:.0f} MiB"
            say(f"  {note}, {figures.seconds:.1f} s by the clock")
    return found


# --- the peers' environments -------------------------------------------------------------------------------


def environment(folder: Path, *wanted: str) -> Path:
    """Make an environment with our own interpreter and packages from PyPI. Returns its Python."""
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        uv = str(ROOT / ".venv" / "bin" / "uv")
        own = os.path.realpath(sys.executable)
        say(f"installing {' '.join(wanted)}")
        subprocess.run([uv, "venv", "-q", "--clear", "-p", own, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", str(python), *wanted], check=True)
        done.touch()
    return python


def install(folder: Path, chosen: argparse.Namespace, clouds: set[str]) -> Peers:
    """Install what the rows need."""
    if chosen.without_peers:
        return Peers()
    found = Peers()
    if "aws" in clouds:
        found.version = chosen.parallelcluster or PARALLELCLUSTER[slurm_release() >= NEW_SLURM]
        found.aws = environment(folder / f"aws-{found.version}", f"aws-parallelcluster-node=={found.version}")
    if "gcp" in clouds and chosen.slurm_gcp is not None:
        found.scripts = chosen.slurm_gcp.resolve()
        found.gcp = environment(folder / "gcp", "-r", str(found.scripts / "requirements.txt"))
    return found


def slurm_release() -> version.Version:
    command = ["/usr/sbin/slurmctld", "-V"]
    return version.parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# --- the table ---------------------------------------------------------------------------------------------


def middle(samples: Sequence[Figures], what: Callable[[Figures], float]) -> float:
    return statistics.median(map(what, samples))


def both(found: dict[str, list[Figures]], what: Callable[[Figures], float], digits: int) -> str:
    """Return a figure of ours and of the peer's."""
    return " / ".join(f"{middle(found[who], what):.{digits}f}" for who in (OURS, PEER) if who in found)


def compared(found: dict[str, list[Figures]], who: str, what: Callable[[Figures], float]) -> str:
    """Return a peer's figure, and how many times as much ours is."""
    if who not in found:
        return "| "
    ours, theirs = middle(found[OURS], what), middle(found[who], what)
    return f"{theirs:.2f} | {ours / theirs:.2f}" if theirs else f"{theirs:.2f} | "


COLUMNS = (
    "row", "work", "ours, CPU s", "peer, CPU s", "ours / peer", "peer at our pace", "ours / that",
    "MiB at most", "API calls", "Slurm RPCs", "slurmctld, CPU s",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def line(cloud: str, row: Row, part: str, found: dict[str, list[Figures]], note: str) -> str:
    """Return a line of the table. Where there are no seconds, the MiB are compared."""
    timed = any(one.cpu for samples in found.values() for one in samples)

    def compared_figure(one: Figures) -> float:
        return one.cpu if timed else one.memory

    unit = "" if timed else " MiB"
    first = [
        f"{middle(found[OURS], compared_figure):.2f}{unit}",
        compared(found, PEER, compared_figure),
        compared(found, EQUAL, compared_figure),
    ]
    if note:
        first[1:] = [f"{note} | ", "| "]
    rest = [
        both(found, lambda one: one.memory, 0),
        both(found, lambda one: sum(one.calls.values()), 0),
        both(found, lambda one: sum(one.rpcs.values()), 0),
        both(found, lambda one: one.slurm, 2),
    ]
    return f"| {cloud}:{row.name}{part} | {row.what}{part} | " + " | ".join([*first, *rest]) + " |"


def details(cloud: str, row: Row, part: str, found: dict[str, list[Figures]]) -> list[str]:
    """Return the calls and the questions by name, of the last sample of each."""
    lines = []
    for who, samples in found.items():
        last = samples[-1]
        spread = f"CPU {min(one.cpu for one in samples):.2f}-{max(one.cpu for one in samples):.2f} s"
        stay = f"; {last.left} jobs are left" if last.left else ""
        parts = [f"programs {last.programs:.2f} s", f"by the clock {last.seconds:.1f} s"]
        counts = [f"{n:g} {name}" for name, n in sorted((last.calls + last.rpcs).items())]
        lines.append(f"  {cloud}:{row.name}{part}, {who}: {spread}; {', '.join(parts + counts)}{stay}")
    return lines


def missing(cloud: str, chosen: argparse.Namespace) -> str:
    """Return what stands in the peer's column where it is not measured."""
    if chosen.without_peers:
        return "left out"
    return "no folder (--slurm-gcp)" if cloud == "gcp" and chosen.slurm_gcp is None else ""


def options() -> argparse.ArgumentParser:
    small = {"nodes": 100, "launch": 20, "seconds": 2.0, "trickle": 2, "runs": 1, "without_peers": True}
    arguments = parser(__doc__, **small, rows=["*:launch-100", "ec2:pass", "ec2:jobs-at-once", "gcp:idle"])
    arguments.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="such as ec2:launch-*")
    arguments.add_argument("--runs", type=int, default=5, help="samples of each, in turns")
    arguments.add_argument("--nodes", type=int, default=5000, help="declared, in five partitions")
    arguments.add_argument("--launch", type=int, default=1000, help="at most a partition's nodes")
    arguments.add_argument("--seconds", type=float, default=60.0, help="of a window, told as a minute")
    arguments.add_argument("--trickle", type=int, default=30, help="seconds in which trickling jobs come")
    arguments.add_argument("--slurm-gcp", type=Path, metavar="FOLDER", help="with its resume.py")
    arguments.add_argument("--parallelcluster", metavar="VERSION", help="another one than the fixed one")
    arguments.add_argument("--environments", type=Path, metavar="FOLDER", help="keeps the peers installed")
    arguments.add_argument("--without-peers", action="store_true", help="ours alone, without a network")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    every = [(cloud, row) for cloud in CLOUDS for row in rows(chosen)]
    wanted = [
        (cloud, row)
        for cloud, row in every
        if any(fnmatch.fnmatch(f"{cloud}:{row.name}", pattern) for pattern in chosen.rows)
    ]
    if not wanted:
        known = ", ".join(f"{cloud}:{row.name}" for cloud, row in every)
        sys.exit(f"--rows {' '.join(chosen.rows)}: no row has such a name; there are {known}")
    # slurmscriptd may end by a signal when its slurmctld is ended.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the clusters end as after an error
    meter = Meter()
    lines: list[str] = []
    more: list[str] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        peers = install(
            (chosen.environments or Path(folder)).resolve(), chosen, {CLOUDS[cloud] for cloud, _ in wanted}
        )
        for cloud in dict.fromkeys(cloud for cloud, _ in wanted):
            document = peers.document() if cloud == "gcp" else None
            say(f"the stand-in of {cloud} starts")
            with Cloud(CLOUDS[cloud], meter, document) as stand_in:
                for row in (row for of, row in wanted if of == cloud):
                    for part, found in measured(row, peers, stand_in, meter, chosen).items():
                        lines.append(line(cloud, row, part, found, missing(cloud, chosen)))
                        more += details(cloud, row, part, found)
                        say(lines[-1])
    slurm = version.spell(slurm_release())
    against = f"aws-parallelcluster-node {peers.version}" if peers.version else "no ParallelCluster"
    print(f"Slurm {slurm}, Python {sys.version.split()[0]}, {against}; medians of {chosen.runs}")
    print("\n".join([HEAD, *lines, "", *more]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
