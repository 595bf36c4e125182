"""Replaces the training in a checkout: seconds instead of minutes, the same progress and result record.

The rest is real: the batch script, srun, the environment's folder (its Python is this machine's). Each task
records when it began and ended, so that a test sees which runs overlapped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from workload import files, result
from workload.options import Options, parse
from workload.slurm import read_job

SECONDS_PER_EPOCH = 0.7


def main() -> None:
    began = time.time()
    options = parse(None)
    if os.environ["SLURM_PROCID"] != "0":
        return
    for epoch in range(1, options.epochs + 1):
        time.sleep(SECONDS_PER_EPOCH)
        progress = {"epoch": epoch, "loss": 1 / epoch, "accuracy": 0.9, "seconds": SECONDS_PER_EPOCH * epoch}
        files.write_json(options.result.with_name("progress.json"), {"epochs": options.epochs, **progress})
    Path("ran.new").write_text(f"{os.environ['SLURM_JOB_ID']} {began} {time.time()}")
    Path("ran.new").replace("ran")  # a test that reads meanwhile finds all of it or nothing
    if Path("../../fail").exists():
        raise SystemExit("no such luck")
    result.write(options.result, _record(options))


def _record(options: Options) -> dict[str, object]:
    nodes, epochs = int(os.environ["SLURM_JOB_NUM_NODES"]), options.epochs
    latency = read_job(os.environ, time.time()).start_latency
    history = [
        {"epoch": epoch + 1, "loss": 0.5, "accuracy": 0.9, "seconds": 10.0 / nodes / epochs}
        for epoch in range(epochs)
    ]
    return {
        "apiVersion": result.API_VERSION, "stack": os.environ["SLURM_STACKS_STACK"],
        "job_id": os.environ["SLURM_JOB_ID"], "partition": os.environ["SLURM_JOB_PARTITION"],
        "machine": os.environ["SLURM_STACKS_MACHINE"], "nodes": nodes, "workers": nodes, "gpus_per_node": 0,
        "devices": ["CPU:0"], "profile": options.profile, "data": "digits-synthetic", "epochs": epochs,
        "global_batch": 64 * nodes, "seconds_total": 12.0 / nodes, "seconds_train": 10.0 / nodes,
        "images_per_second": 1000.0 * nodes, "loss": 0.5, "accuracy": 0.9, "test_accuracy": 0.9,
        "history": history, "start_latency_seconds": latency, "restarts": 0,
        "digest": os.environ["SLURM_STACKS_WORKLOAD_DIGEST"], "versions": {}, "cost_usd": 0.0,
        "seed": options.seed, "learning_rate": options.learning_rate, "average_every": options.average_every,
        "cores": nodes, "cores_shared": False, "cores_others": None,
        "step_seconds": None, "exchange_seconds": None, "phases": {},
    }  # fmt: skip


if __name__ == "__main__":
    main()
