"""A soak from `up` to `down`: its clock, its report."""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from node.design.model import CONTAINER
from node.slurm.control import SlurmError
from node.system import rpc
from operations.waiting import attempts
from tests.support.checkout import until
from tests.support.soak import audit, sharing
from tests.support.soak.cluster import SoakCluster
from tests.support.soak.faults import KINDS, Faults
from tests.support.soak.journal import Journal
from tests.support.soak.load import Load

TICK_SECONDS = 0.25
LOOK_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
EXTRA_SECONDS = 180.0
"""The longest extension of a soak for faults that have not happened in its time."""
RECORDED_SECONDS = 90.0
AWAY_SECONDS = 150.0
"""The limit from the last job's end until every node is off: SuspendTime, SuspendTimeout, some passes."""


@dataclass(frozen=True)
class Options:
    """The options.

    Attributes:
        seconds: how long jobs and faults come.
        drain: seconds that the queue may take to empty after all faults have ended.
        kinds: kinds of faults.
        lose_head: After how many seconds the controller is lost each time; `None` means never.
        shares: whether jobs are of several accounts and QOS, and some make way; process machines only.
        pools: whether a partition has pools.
    """

    seconds: float
    seed: int
    drain: float = 300.0
    machines: str = "process"
    kinds: tuple[str, ...] = KINDS
    logs: Path | None = None
    lose_head: float | None = None
    shares: bool = False
    pools: bool = False


class Soak:
    """One soak.

    Args:
        folder: the folder of the cluster's checkout.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self._options = options
        chance = random.Random(options.seed)
        self.logs = options.logs or Path(tempfile.mkdtemp(prefix="slurm-stacks-soak-"))
        self.journal = Journal(self.logs)
        self._cluster = SoakCluster(
            folder / "a soak", options.machines, shares=options.shares, pools=options.pools
        )
        self._most = sum(self._cluster.groups.values())
        self._load = Load(self._cluster, self.journal, random.Random(chance.random()))
        self._faults = Faults(
            self._cluster,
            self.journal,
            self._load,
            random.Random(chance.random()),
            list(options.kinds),
            options.lose_head,
        )
        self._began = time.monotonic()
        self._looked = self._told = 0.0
        self._memory: list[float | None] = []

    def run(self) -> list[str]:
        """Run the whole soak, and return the findings. The cluster is always gone afterwards."""
        print(f"seed {self._options.seed}; logs will be kept in {self.logs}", flush=True)
        try:
            self._cluster.checkout.cluster("up", check=True, timeout=300)
            # The journal is in the shared folder, where jobs on all machines can write their notes.
            self._move_notes()
            self._memory.append(self._cluster.memory_mib("elastic"))
            self._soak()
            self._drain()
            self._memory.append(self._cluster.memory_mib("elastic"))
            self._audit()
        finally:
            self._faults.settle()
            self._keep_logs()
            for line in self._cluster.checkout.close():
                self.journal.finding(f"left behind: {line}")
        self._report()
        self.journal.close()
        return self.journal.findings

    def _move_notes(self) -> None:
        shared = self._cluster.run.shared / "soak"
        shutil.copytree(self.journal.notes, shared / "notes")
        shutil.copy(self.journal.script, shared / "job.sh")
        (shared / "notes").chmod(0o777)
        self.journal.notes, self.journal.script = shared / "notes", shared / "job.sh"

    def _keep_logs(self) -> None:
        run = self._cluster.run.path
        disks = [str(log.relative_to(run)) for log in run.glob("disk/*/log")]
        for place in ("log", "cloud", "bucket/boot", "shared/soak", "lib", "etc", *disks):
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(run / place, self.logs / place, dirs_exist_ok=True, ignore=_sockets)
        self.journal.notes = self.logs / "shared" / "soak" / "notes"

    # --- the clock -----------------------------------------------------------------------------------------

    def _soak(self) -> None:
        self._began = time.monotonic()
        end = self._began + self._options.seconds
        # Each kind happens at least once. On a slow machine that takes longer.
        while time.monotonic() < end or (self._faults.untried and time.monotonic() < end + EXTRA_SECONDS):
            self._faults.tick()
            self._load.tick()
            self._step()

    def _drain(self) -> None:
        self._say("everything is set right; the queue empties")
        self._faults.clear()
        deadline = time.monotonic() + self._options.drain
        while self._load.waiting() and time.monotonic() < deadline:
            self._step()
            self._load.end_ghosts()
        left, ended = self._load.waiting(), time.monotonic()
        while time.monotonic() < ended + AWAY_SECONDS and not self._is_quiet():
            self._step()
        took = ended - deadline + self._options.drain
        self._say(f"{len(left)} jobs were left after {took:.0f} s; the nodes are looked at")
        self._look()

    def _is_quiet(self) -> bool:
        try:
            return not self._cluster.machines() and not audit.stuck(self._cluster.control.nodes())
        except (SlurmError, rpc.RpcUnavailableError, rpc.RpcError):
            return False

    def _step(self) -> None:
        now = time.monotonic()
        if now >= self._looked + LOOK_SECONDS:
            self._looked = now
            self._look()
        if now >= self._told + PROGRESS_SECONDS:
            self._told = now
            self._progress()
        time.sleep(TICK_SECONDS)

    def _look(self) -> None:
        """Read the queue and the machines. Either may not answer at the moment."""
        with contextlib.suppress(SlurmError):
            self._load.look()
        with contextlib.suppress(rpc.RpcUnavailableError, rpc.RpcError):
            audit.machines_now(self.journal, self._cluster.machines(), self._most)

    # --- what is said --------------------------------------------------------------------------------------

    def _progress(self) -> None:
        counts = self._load.counts()
        now = ", ".join(f"{key}={value}" for key, value in self._faults.limits.items())
        self._say(
            f"jobs {counts['submitted']}: {counts['over']} over, {counts['running']} run, "
            f"{counts['waiting']} wait; faults {len(self.journal.faults)}; set: {now or 'nothing'}"
        )

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", flush=True)

    def _audit(self) -> None:
        """Make the checks that need the cluster."""
        self._answers()
        for line in audit.stuck(self._cluster.control.nodes()):
            self.journal.finding(f"node stuck: {line}")
        for line in audit.leaked(self._cluster.control.detailed_nodes()):
            self.journal.finding(f"GPUs counted as used without a job: {line}")
        if self._options.machines == CONTAINER or self._options.shares:
            for line in self._unrecorded():
                self.journal.finding(f"accounting: {line}")
        if self._options.shares:
            for line in sharing.used(self._cluster.control.run("scontrol", "show", "assoc_mgr")):
                self.journal.finding(f"counted against a limit without a job: {line}")
        for machine in self._cluster.machines():
            self.journal.finding(f"orphan: machine {machine['id']} of {machine['node']}, {machine['state']}")
        for line in self._cluster.jobs_processes():
            self.journal.finding(f"process left on a node that is off: {line}")

    def _unrecorded(self) -> list[str]:
        """Return what the accounting does not have. slurmctld sends it every few seconds."""
        options = ("--allocations", "--noheader", "--parsable2", "--duplicates", "--starttime=now-1day")
        for _ in attempts(RECORDED_SECONDS, 2.0):
            records: dict[str, list[str]] = {}
            text = self._cluster.control.run("sacct", *options, "--format=JobID,JobName,State")
            for job, name, state in (line.split("|") for line in text.splitlines()):
                index = job.partition("_")[2]
                records.setdefault(f"{name}.{index}" if index else name, []).append(state.split()[0])
            if not (missing := audit.unrecorded(self.journal, records)):
                break
        return missing

    def _answers(self) -> None:
        """Return whether the daemons answer. The last fault may have killed one."""
        until(self._cluster.control.ping, 60, "slurmctld's answer")

    def _report(self) -> None:
        """Write the report from the kept logs, because the cluster is gone."""
        journal = self.journal
        made_way = sharing.read(self.logs / "log" / "slurmctld.log")
        sharing.take_in(journal, made_way)
        ended, broken = audit.outcomes(journal), audit.broken_runs(journal)
        repeated = audit.repeated_runs(journal)
        print(f"seed {self._options.seed}, {self._options.seconds:g} s, machines: {self._options.machines}")
        print(f"jobs: {sum(ended.values())}; {_listed(ended)}")
        print(f"faults: {len(journal.faults)}; {_listed(journal.kinds())}")
        print(f"runs that were cut off: {sum(broken.values())}; {_listed(broken)}")
        print(f"runs of what had ended before: {sum(repeated.values())}; {_listed(repeated)}")
        if self._options.shares:
            print(f"made way: {len(made_way)} times, {len({event.job for event in made_way})} jobs")
        if away := self._faults.away:
            print(
                f"without a scheduler: median {statistics.median(away):.1f} s, worst {max(away):.1f} s, "
                f"of {len(away)}"
            )
        if back := audit.recoveries(journal):
            print(
                f"a machine's death until its job ran again: median {statistics.median(back):.1f} s, "
                f"worst {max(back):.1f} s, of {len(back)}"
            )
        number, which = audit.flaps(journal)
        print(f"most often queued again: {number} times ({which})")
        print(f"machines at once, at most: {journal.peak} of {self._most}")
        print(f"elastic daemon's memory, MiB: {' -> '.join(f'{m:.0f}' if m else '?' for m in self._memory)}")
        print(f"findings: {len(journal.findings)}")
        for text in journal.findings:
            print(f"  {text}")
        print(f"logs: {self.logs}", flush=True)


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counted.items())) or "none"


def _sockets(folder: str, names: list[str]) -> set[str]:
    return {
        name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()
    }


@dataclass(frozen=True)
class Result:
    """The result of a soak.

    Attributes:
        findings: violations, one sentence each.
        logs: the folder where the run's logs are kept.
        jobs: outcome -> number of jobs.
        faults: kind -> number of faults.
    """

    findings: list[str]
    logs: Path
    jobs: Counter[str]
    faults: Counter[str]


def soak(options: Options) -> Result:
    """Run a soak. Nothing of its cluster is left, however it ends."""
    with tempfile.TemporaryDirectory() as folder:
        made = Soak(Path(folder), options)
        findings = made.run()
        return Result(findings, made.logs, audit.outcomes(made.journal), made.journal.kinds())
