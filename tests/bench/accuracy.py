"""The figures of the training itself, without Slurm; run it by the training environment's Python:

    PYTHONPATH=. <environment>/bin/python tests/bench/accuracy.py

1. One worker, `published`, 8 epochs: held-out accuracy, at least .98.
2. Two workers, `sync`, 2 epochs: the seconds of the whole run by phase.
3. One worker at twice the batch: its final weights are those of the two, bit for bit.

About 4 minutes on two cores. Exits 1 if a figure is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, tasks: int, *arguments: str) -> tuple[dict[str, Any], float, str]:
    """Train in a folder of its own. Returns the result, the wall time in seconds, and the chief's output."""
    folder.mkdir()
    command = [sys.executable, "-m", "workload.train", *arguments, "--weights", "weights"]
    started = time.monotonic()
    processes = []
    for rank in range(tasks):
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "SLURM_STEP_NODELIST": f"127.0.0.[1-{tasks}]",
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{tasks})",
            "SLURM_PROCID": str(rank),
            "SLURMD_NODENAME": f"127.0.0.{rank + 1}",
        }
        with (folder / f"out-{rank}.txt").open("wb") as out:
            processes.append(
                subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
            )
    statuses = [process.wait() for process in processes]
    seconds = time.monotonic() - started
    said = (folder / "out-0.txt").read_text(encoding="utf-8")
    if any(statuses):
        raise SystemExit(f"{folder.name}: exit statuses {statuses}\n{said}")
    return json.loads((folder / "result.json").read_text(encoding="utf-8")), seconds, said


def phases(said: str) -> str:
    return next(line for line in said.splitlines() if line.startswith("seconds:"))


def weights(folder: Path, rank: int = 0) -> list[Any]:
    with np.load(folder / "weights" / f"weights-{rank}.npz") as file:
        return [file[name] for name in sorted(file)]


def same(one: list[Any], other: list[Any]) -> bool:
    return all((a == b).all() for a, b in zip(one, other, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="of the published run")
    epochs = str(parser.parse_args().epochs)
    good = True
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-accuracy-") as name:
        root = Path(name)
        record, seconds, said = run(root / "published", 1, "--profile", "published", "--epochs", epochs)
        good &= record["test_accuracy"] >= 0.98
        print(
            f"published, 1 worker, {epochs} epochs, {record['data']}: held out {record['test_accuracy']:.4f}"
        )
        print(f"  {record['accuracy']:.4f} in training, {seconds:.1f} s; {phases(said)}", flush=True)

        record, seconds, said = run(root / "two", 2, "--epochs", "2")
        print(f"sync, 2 workers, 2 epochs: {seconds:.1f} s; {phases(said)}", flush=True)
        _, seconds, said = run(root / "one", 1, "--epochs", "2", "--batch", "128")
        print(f"sync, 1 worker at batch 128, 2 epochs: {seconds:.1f} s; {phases(said)}")
        equal = same(weights(root / "two", 0), weights(root / "two", 1))
        as_one = same(weights(root / "two"), weights(root / "one"))
        print(f"weights: two workers alike: {equal}; as one worker at twice the batch, bit for bit: {as_one}")
        good = good and equal and as_one
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
