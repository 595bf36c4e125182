"""`workload.train` of a second: the whole way of a benchmark (stage, sbatch, nodes, srun, result) without
TensorFlow. Its numbers are made up; only its form is a training's. Copied over train.py in a test's checkout.
"""

from __future__ import annotations

import os
import time

from workload.options import parse, read_job
from workload.result import API_VERSION, write


def main() -> None:
    started = time.time()
    options = parse()
    nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
    job = read_job(os.environ, started)
    if os.environ["SLURM_PROCID"] != "0":
        return
    seconds = 8.0 * options.epochs / (nodes + 1)
    history = [
        {
            "epoch": n + 1,
            "loss": 0.5 / (n + 1),
            "accuracy": 1 - 0.1 / (n + 1),
            "seconds": seconds / options.epochs,
        }
        for n in range(options.epochs)
    ]
    write(
        options.result,
        {
            "apiVersion": API_VERSION,
            "stack": job.stack,
            "job_id": job.job_id,
            "partition": job.partition,
            "machine": job.machine,
            "nodes": nodes,
            "workers": nodes,
            "gpus_per_node": options.gpus_per_node,
            "devices": ["CPU:0"],
            "profile": options.profile,
            "data": "digits-synthetic",
            "epochs": options.epochs,
            "global_batch": options.batch * nodes,
            "seconds_total": seconds + 1,
            "seconds_train": seconds,
            "images_per_second": 60000 * options.epochs / seconds,
            "loss": history[-1]["loss"],
            "accuracy": history[-1]["accuracy"],
            "test_accuracy": history[-1]["accuracy"],
            "history": history,
            "start_latency_seconds": job.start_latency,
            "restarts": job.restarts,
            "digest": job.digest,
            "versions": {"training": "made up"},
            "cost_usd": None,
        },
    )


if __name__ == "__main__":
    main()
