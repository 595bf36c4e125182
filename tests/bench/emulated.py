"""The accuracy of many workers, emulated in one process; run it by the training environment's Python:

    PYTHONPATH=. <environment>/bin/python tests/bench/emulated.py --workers 8 --profile local-sgd

TensorFlow gives the process one logical CPU device for each worker, and the profile's own loop runs on them
as replicas, each with its part of each global batch, as on that many nodes. Only the all-reduce differs;
tests/workload/test_local_sgd.py shows that the results are the same. The times mean nothing here.

Exits 1 if the held-out accuracy is under --least.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from workload import data, local_sgd, model, sync
from workload.checkpoint import numbered
from workload.loop import Epoch, Plan
from workload.options import BATCH, EPOCHS, LEARNING_RATE, default_cache

LOOPS = {"sync": sync, "local-sgd": local_sgd}


def say(epoch: Epoch) -> None:
    print(
        f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}, {epoch.seconds:.0f} s",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--profile", choices=sorted(LOOPS), default="local-sgd")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--average-every", type=int, default=16, help="local-sgd: steps")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps-per-epoch", type=int, help="fewer than an epoch has")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--weights", type=Path, help="save the final weights in this .npz file")
    parser.add_argument("--least", type=float, default=0.0, help="the held-out accuracy to reach")
    options = parser.parse_args()
    workers = options.workers
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * workers)
    strategy = tf.distribute.get_strategy()
    if workers > 1:
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{n}" for n in range(workers)], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    given = data.load("synthetic", options.cache)
    steps = len(given.x_train) // (BATCH * workers)
    plan = Plan(
        strategy=strategy,
        data=given,
        epochs=options.epochs,
        steps=min(steps, options.steps_per_epoch or steps),
        global_batch=BATCH * workers,
        learning_rate=options.learning_rate,
        seed=options.seed,
        average_every=options.average_every,
    )
    started = time.monotonic()
    trained = LOOPS[options.profile].train(plan, say)
    accuracy = model.held_out_accuracy(trained, given.x_test, given.y_test)
    every = f", averages every {options.average_every} steps" if options.profile == "local-sgd" else ""
    print(
        f"{options.profile}, {workers} workers{every}, {plan.epochs} epochs of {plan.steps} steps, seed "
        f"{plan.seed}: held out {accuracy:.4f} on {given.name}; {time.monotonic() - started:.0f} s, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    if options.weights is not None:
        with options.weights.open("wb") as file:
            np.savez(file, **numbered(trained.get_weights()))
    return 0 if accuracy >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
