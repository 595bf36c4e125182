"""How long commands of this checkout take, beside another checkout's:

    .venv/bin/python -m tests.bench.commands --command "plan --stack aws-gpu" status --against ../other

Each sample is a process of `./cluster`, as a user runs it; the checkouts take turns. It prints the median,
the least and the most of the seconds by the clock and of the seconds of CPU time, which a busy machine
changes less, and how many times as long the other checkout takes. `--against .` shows which differences mean
nothing. A command that fails ends the script, so `status` needs clusters that are up.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figures import ROOT, in_turns, parser, ratios, spread

PRINTS = r"^--version +\d.* \(.*\)\n  other +\d.* \(.*\)\n  other / this +\d.* \(.*\)$"
DEFAULT = ("--version", "outputs --help", "plan", "plan --stack aws-gpu")


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, command=["--version"], rounds=2, against=ROOT)
    arguments.add_argument("--command", nargs="+", default=DEFAULT, help="each with its options, in quotes")
    arguments.add_argument("--against", type=Path, help="another checkout")
    arguments.add_argument("--rounds", type=int, default=10)
    return arguments


def sample(checkout: Path, words: list[str]) -> tuple[float, float]:
    """Run a command once: its seconds by the clock, and those of CPU time with its children's."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(checkout / "cluster"), *words],
        cwd=checkout,
        # Where it is set, as in many containers, each command would compile our modules anew.
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{checkout}: ./cluster {shlex.join(words)} ended with {process.returncode}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def main() -> int:
    chosen = options().parse_args()
    checkouts = {"this": ROOT} | ({"other": chosen.against.resolve()} if chosen.against else {})
    for checkout in checkouts.values():
        sample(checkout, ["--version"])  # makes the environment
    print(f"{'':<40}{'seconds':<22}CPU seconds")
    for command in chosen.command:
        for checkout in checkouts.values():
            sample(checkout, shlex.split(command))  # compiles the modules
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
        for _, name in in_turns(list(checkouts), chosen.rounds):
            found[name].append(sample(checkouts[name], shlex.split(command)))
        columns = {name: list(zip(*samples, strict=True)) for name, samples in found.items()}
        for name, (clock, cpu) in columns.items():
            head = command if name == "this" else f"  {name}"
            print(f"{head:<40}{spread(clock, 2):<22}{spread(cpu, 2)}", flush=True)
        if chosen.against:
            factors = [
                spread(ratios(*both), 2) for both in zip(columns["other"], columns["this"], strict=True)
            ]
            print(f"{'  other / this':<40}{factors[0]:<22}{factors[1]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
