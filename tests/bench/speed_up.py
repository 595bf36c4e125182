"""How much faster two local nodes of one core each train than one:

    .venv/bin/python -m tests.bench.speed_up --epochs 8 --repeat 2

A worker is a process on a core of its own, as a process machine's jobs are, without Slurm. All runs belong
to one measurement: each repetition runs every case once, and the next one in the opposite order, so that
other load on the host affects all of them alike. It prints the median and the spread of each case, and the
load before each run: the figures of a busy host are worth little. The prediction is of steps and exchanges;
the line "after the first epoch" compares the same, without the first epoch's building of graphs.

With `--link 1000,0.3`, as root, two workers are in network namespaces of their own with a link of 1000 Mbit/s
and 0.3 ms between them (`tests/bench/shaped_link.py`).

With `--share 0.5`, as root, each worker has half a core instead, so that two cores measure up to four workers
(`tests/bench/core_share.py`). Beside each case of more workers than two it prints the prediction for it from
the same profile's run on two.

Exits 1 if a bound of --least is missed. `--least local-sgd:2=1.7` means: `local-sgd` on two workers trains at
least 1.7 times the images a second of `sync` on one worker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import shaped_link
from tests.bench.core_share import shares
from tests.bench.figures import ROOT, in_turns, parser, ratios, spread, trainer
from tests.bench.shaped_link import Link
from workload import scaling

CASES = ("sync:1", "published:1", "published:2", "sync:2", "local-sgd:2")
BASE = "sync:1"
PRINTS = r"^sync:1 +\d+\.\d +1\.00 .*\n(?s:.*)^sync:2 +\d+\.\d +\d+\.\d\d .* MB +0\.\d{4}"


@dataclass
class Measured:
    """The results of a case's runs."""

    seconds: list[float] = field(default_factory=list)
    images: list[float] = field(default_factory=list)
    """Images a second."""
    accuracy: list[float] = field(default_factory=list)
    every: list[int | None] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    """The speed-up that the run's own times of step and exchange allow (`workload.scaling`)."""
    start: list[float] = field(default_factory=list)
    """Seconds from the process's start to the first step."""
    megabytes: list[float] = field(default_factory=list)
    """The most memory of a worker."""
    step: list[float] = field(default_factory=list)
    """Seconds of a step, where the run measured it."""
    times: list[scaling.Measured] = field(default_factory=list)
    """The times of step and exchange of each run on several workers."""
    steady: list[float] = field(default_factory=list)
    """Seconds of an epoch after the first, in which TensorFlow builds its graphs and rounds are chosen."""


@contextlib.contextmanager
def confined(workers: int, cores: list[int], share: float, link: Link | None) -> Iterator[list[list[str]]]:
    """Yield for each worker the words before its command, which give it its core and its network."""
    if share == 1:
        words = [["taskset", "--cpu-list", str(cores[rank])] for rank in range(workers)]
        yield [[*(link.inside(rank) if link else []), *words[rank]] for rank in range(workers)]
        return
    with shares(workers, share) as files:
        enter = 'echo $$ > "$0" && exec "$@"'
        pinned = [["taskset", "--cpu-list", str(cores[rank % len(cores)])] for rank in range(workers)]
        yield [["sh", "-c", enter, str(files[rank]), *pinned[rank]] for rank in range(workers)]


def run(
    case: str, folder: Path, more: list[str], cores: list[int], share: float, link: Link | None
) -> dict[str, Any]:
    """Train in a folder of its own: the result record."""
    workers = int(case.partition(":")[2])
    folder.mkdir()
    with confined(workers, cores, share, link) as before:
        return train(case, folder, more, before, link)


def train(
    case: str, folder: Path, more: list[str], before: list[list[str]], link: Link | None
) -> dict[str, Any]:
    """Start the workers and wait for them: the result record."""
    profile, workers = case.partition(":")[0], len(before)
    network = "127.0.0" if link is None else link.address(0).rpartition(".")[0]
    processes = []
    for rank in range(workers):
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "SLURM_STEP_NODELIST": f"{network}.[1-{workers}]",
            "SLURM_STEP_NUM_TASKS": str(workers),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{workers})",
            "SLURM_PROCID": str(rank),
            "SLURMD_NODENAME": f"{network}.{rank + 1}",
        }
        command = [*before[rank], trainer(), "-m", "workload.train"]
        with (folder / f"out-{rank}.txt").open("wb") as out:
            processes.append(
                subprocess.Popen(
                    [*command, "--profile", profile, *more],
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        megabytes = max(peak(process) for process in processes)
    finally:
        for process in processes:
            process.kill()
    if statuses := [process.returncode for process in processes if process.returncode]:
        raise SystemExit(f"{case}: exit statuses {statuses}\n{(folder / 'out-0.txt').read_text()}")
    record: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return record | {"megabytes": megabytes}


def peak(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process: the most memory that it had, in MB."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024 / 1e6


def print_times(measured: Measured, base: Measured) -> None:
    """Print the times that predictions come from, and the speed-up that they mean: without the start."""
    steps = measured.step or [t.step for t in measured.times]
    if steps:
        exchange = [1000 * t.exchange for t in measured.times]
        exchanges = f", an exchange {spread(exchange, 1)} ms" if exchange else ""
        print(f"{'':<14}a step {spread([1000 * s for s in steps], 1)} ms{exchanges}")
    if measured.steady and measured is not base:
        ratios = [statistics.median(base.steady) / seconds for seconds in measured.steady]
        print(f"{'':<14}after the first epoch: {spread(ratios, 2)}")


def print_forecast(case: str, measured: dict[str, Measured]) -> None:
    """Print what the profile's runs on two workers predict for a case of more."""
    profile, _, workers = case.partition(":")
    two = measured.get(f"{profile}:2", Measured())
    if int(workers) < 3 or not (two.times and measured[BASE].step):
        return
    alone = statistics.median(measured[BASE].step)
    print(f"{'':<14}from two workers: {spread([t.speed_up(int(workers), alone) for t in two.times], 2)}")


def bound(text: str) -> tuple[str, float]:
    case, _, least = text.partition("=")
    return case, float(least)


def add(measured: dict[str, Measured], case: str, record: dict[str, Any]) -> None:
    """Add a run's record to its case's results."""
    results = measured[case]
    results.seconds.append(record["seconds_train"])
    results.images.append(record["images_per_second"])
    results.megabytes.append(record["megabytes"])
    results.accuracy.append(record["test_accuracy"])
    results.steady += [epoch["seconds"] for epoch in record["history"][1:]]
    results.every.append(record["average_every"])
    results.start.append(sum(record["phases"][name] for name in ("data", "import", "meet")))
    step, exchange, every = (record[f] for f in ("step_seconds", "exchange_seconds", "average_every"))
    if exchange is not None:
        found = scaling.Measured(step, exchange, record["workers"], every or 1)
        bases = measured[BASE].step
        alone = statistics.median(bases) if bases else None
        results.predicted.append(found.speed_up(record["workers"], alone))
        results.times.append(found)
    elif step is not None:
        results.step.append(step)


def report(measured: dict[str, Measured], least: list[tuple[str, float]]) -> bool:
    """Print the table, and return whether the bounds are kept."""
    head = f"{'case':<14}{'seconds of training':<26}{'times as fast as ' + BASE:<28}"
    print(f"\n{head}{'predicted':<12}{'to 1st step':<14}{'memory':<9}held out")
    missed = []
    for case, results in measured.items():
        faster = ratios(results.images, measured[BASE].images)
        every = results.every
        rounds = "" if every[0] is None else f"  rounds of {', '.join(map(str, every))} steps"
        print(
            f"{case:<14}{spread(results.seconds):<26}{spread(faster, 2):<28}"
            f"{f'{statistics.median(results.predicted):.2f}' if results.predicted else '-':<12}"
            f"{f'{statistics.median(results.start):.1f} s':<14}{f'{max(results.megabytes):.0f} MB':<9}"
            f"{spread(results.accuracy, 4)}{rounds}"
        )
        print_times(results, measured[BASE])
        print_forecast(case, measured)
        missed += [name for name, bound in least if name == case and statistics.median(faster) < bound]
    return not missed


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, cases=["sync:1", "sync:2"], epochs=1, steps_per_epoch=20, repeat=1)
    arguments.add_argument("--cases", nargs="+", default=list(CASES), metavar="PROFILE:WORKERS")
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--steps-per-epoch", type=int, help="fewer than an epoch has")
    arguments.add_argument("--repeat", type=int, default=2, help="even: as often in either order")
    arguments.add_argument(
        "--link", type=shaped_link.from_text, metavar="MBIT,MS", help="between the two workers"
    )
    arguments.add_argument("--share", type=float, default=1.0, help="of a core, for each worker")
    arguments.add_argument("--least", nargs="*", type=bound, default=[], metavar="CASE=RATIO")
    arguments.add_argument("arguments", nargs="*", help="of workload.train, behind --")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < chosen.share * max(int(case.partition(":")[2]) for case in chosen.cases):
        raise SystemExit(f"this host has {len(cores)} cores, fewer than workers: nothing can be compared")
    measured = {case: Measured() for case in chosen.cases}
    link: Link | None = chosen.link
    steps = [] if chosen.steps_per_epoch is None else ["--steps-per-epoch", str(chosen.steps_per_epoch)]
    arguments = ["--data", "synthetic", "--epochs", str(chosen.epochs), *steps, *chosen.arguments]
    with (
        tempfile.TemporaryDirectory(prefix="slurm-stacks-speed-up-") as name,
        link or contextlib.nullcontext(),
    ):
        if link is not None:
            print(f"the link: {shaped_link.measured(link)}", flush=True)
        for repetition, case in in_turns(chosen.cases, chosen.repeat):
            load = os.getloadavg()[0]
            folder = Path(name) / f"{case.replace(':', '-')}-{repetition}"
            record = run(case, folder, arguments, cores, chosen.share, link)
            add(measured, case, record)
            seconds = record["seconds_train"]
            print(f"{time.strftime('%H:%M:%S')} {case}: {seconds:.1f} s, load {load:.1f}", flush=True)
    return 0 if report(measured, chosen.least) else 1


if __name__ == "__main__":
    sys.exit(main())
