"""How long the component's plugin takes to start, and a preview of two clusters beside one:

    .venv/bin/python -m tests.bench.component_preview --rounds 5

A start ends when the engine could ask for the schema. A preview declares clusters on AWS against mocks, so it
has the program's own share alone. Both are seconds of CPU time of a process, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from tests.bench.figures import ROOT, Targets, in_turns, parser, ratios, spread

PRINTS = r"^  start of the plugin: \d.*\n  preview of two clusters: \d.* times one"
START_SECONDS, RATIO = 1.5, 1.8
PREVIEW = """
import sys
from tests.support.component_program import SMALL, declared
declared({f"cluster-{number}": lambda: SMALL for number in range(int(sys.argv[1]))}, preview=True)
"""


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, rounds=1)
    arguments.add_argument("--rounds", type=int, default=5)
    return arguments


def finished(process: subprocess.Popen[str]) -> float:
    """Wait for a process, and return the seconds of CPU time that it and its children took."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def start() -> float:
    line = [sys.executable, str(ROOT / "component"), "127.0.0.1:1"]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if not process.stdout.readline().strip().isdigit():
        raise SystemExit("the plugin printed no port")
    process.stdout.close()
    process.terminate()
    return finished(process)


def preview(clusters: int) -> float:
    process = subprocess.Popen([sys.executable, "-c", PREVIEW, str(clusters)], cwd=ROOT, text=True)
    seconds = finished(process)
    if process.returncode:
        raise SystemExit(f"a preview of {clusters} ended with {process.returncode}")
    return seconds


def main() -> int:
    chosen = options().parse_args()
    targets = Targets(timed=not chosen.quick)
    targets.below(
        "start of the plugin", statistics.median(start() for _ in range(chosen.rounds)), START_SECONDS, "s"
    )
    found: dict[int, list[float]] = {1: [], 2: []}
    for _, clusters in in_turns([1, 2], chosen.rounds):
        found[clusters].append(preview(clusters))
    ratio = statistics.median(ratios(found[2], found[1]))
    targets.below("preview of two clusters", ratio, RATIO, "times one")
    print(f"  seconds of one: {spread(found[1])}, of two: {spread(found[2])}")
    return targets.status()


if __name__ == "__main__":
    sys.exit(main())
