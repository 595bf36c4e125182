"""How long many statuses at once take, beside another checkout's elastic daemon:

    .venv/bin/python -m tests.bench.statuses --callers 60 --against ../other

Each sample is a process that serves the daemon's socket. Its Slurm is simulated: each reading of nodes,
jobs, reservations or partitions is a program that computes for as long as `--milliseconds` says, as squeue
does with many jobs. It prints the seconds until all callers have their answers, and how many readings there
were. `--against .` shows which differences mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.figures import ROOT, in_turns, parser, ratios, spread

PRINTS = r"^this +\d.*\d+ readings\nother +\d.*\d+ readings\nother / this +\d.*$"
SAMPLE = """
import json, subprocess, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from node.system import rpc
from node.elastic.daemon import Elastic
from tests.support.doubles import FakeControl, FakeDriver, fast_design, settings

callers, milliseconds = int(sys.argv[1]), int(sys.argv[2])
code = f"import time\\nwhile time.process_time() < {milliseconds / 1000}: pass"
count = []

def read():
    count.append(1)
    subprocess.run([sys.executable, "-S", "-c", code], check=True)

class Slow(FakeControl):
    def nodes(self): return read() or super().nodes()
    def jobs(self): return read() or super().jobs()
    def reservations(self): return read() or super().reservations()
    def partition_states(self): return read() or super().partition_states()

with tempfile.TemporaryDirectory() as folder:
    elastic = Elastic(settings(Path(folder), fast_design()), Slow(), FakeDriver(), Path(folder))
    server = rpc.Server(folder + "/s", elastic.handle)
    threading.Thread(target=server.serve, daemon=True).start()
    began = time.monotonic()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(lambda _: rpc.call(folder + "/s", "status", 600.0), range(callers)))
    print(json.dumps([time.monotonic() - began, len(count)]))
    server.close()
"""


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, callers=4, milliseconds=1, rounds=1, against=ROOT)
    arguments.add_argument("--callers", type=int, default=60)
    arguments.add_argument("--milliseconds", type=int, default=20, help="CPU time of one reading")
    arguments.add_argument("--against", type=Path, help="another checkout")
    arguments.add_argument("--rounds", type=int, default=5)
    return arguments


def sample(checkout: Path, callers: int, milliseconds: int) -> tuple[float, int]:
    """Return the seconds until all have an answer, and the number of readings."""
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE, str(callers), str(milliseconds)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds, readings = json.loads(done.stdout)
    return seconds, readings


def main() -> int:
    chosen = options().parse_args()
    checkouts = {"this": ROOT} | ({"other": chosen.against.resolve()} if chosen.against else {})
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in checkouts}
    for _, name in in_turns(list(checkouts), chosen.rounds):
        found[name].append(sample(checkouts[name], chosen.callers, chosen.milliseconds))
    for name, samples in found.items():
        most = max(readings for _, readings in samples)
        print(f"{name:<14}{spread([seconds for seconds, _ in samples], 2)} s, {most} readings", flush=True)
    if chosen.against:
        seconds = {name: [taken for taken, _ in samples] for name, samples in found.items()}
        print(f"{'other / this':<14}{spread(ratios(seconds['other'], seconds['this']), 1)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
