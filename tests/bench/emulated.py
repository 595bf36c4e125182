"""The held-out accuracy of one and of many workers, over several seeds, emulated in one process.

Run it by the training environment's Python:

    PYTHONPATH=. <environment>/bin/python tests/bench/emulated.py --workers 1 2 --seeds 5

TensorFlow gives the process one logical CPU device for each worker, and the profile's own loop runs on them
as replicas, each with its part of each global batch, as on that many nodes. Only the all-reduce differs;
tests/workload/test_local_sgd.py shows that the results are the same. The times mean nothing here.

Each seed draws other first weights and another order of the examples, and trains every number of workers in
turn. The table has the mean over the seeds, their standard deviation, the least and the most, and the mean
difference to the first number of workers with two standard errors: of other seeds, from the differences of
the same seed, and of another choice of held-out digits.

Exits 1 if a mean is under --least, or further than --within under that of the first number of workers.
"""

import argparse
import gc
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from workload import data, local_sgd, sync
from workload.checkpoint import numbered
from workload.loop import Plan
from workload.options import BATCH, EPOCHS, LEARNING_RATE, default_cache
from workload.published import held_out_hits
from workload.result import Epoch

LOOPS = {"sync": sync, "local-sgd": local_sgd}


def say(epoch: Epoch) -> None:
    print(
        f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}, {epoch.seconds:.0f} s",
        flush=True,
    )


def run(options: argparse.Namespace, given: data.Data, workers: int, seed: int) -> Any:
    """Train, and return which held-out images the model gets right."""
    strategy = tf.distribute.get_strategy()
    if workers > 1:
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{n}" for n in range(workers)], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    steps = len(given.x_train) // (BATCH * workers)
    plan = Plan(
        strategy=strategy,
        data=given,
        epochs=options.epochs,
        steps=min(steps, options.steps_per_epoch or steps),
        global_batch=BATCH * workers,
        learning_rate=options.learning_rate,
        seed=seed,
        average_every=options.average_every,
    )
    started = time.monotonic()
    trained = LOOPS[options.profile].train(plan, say)
    hits = held_out_hits(trained, given.x_test, given.y_test)
    every = f", averages every {options.average_every} steps" if options.profile == "local-sgd" else ""
    print(
        f"{options.profile}, {workers} workers{every}, {plan.epochs} epochs of {plan.steps} steps, seed "
        f"{plan.seed}: held out {hits.mean():.4f} on {given.name}; {time.monotonic() - started:.0f} s, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if options.weights is not None:
        options.weights.mkdir(parents=True, exist_ok=True)
        with (options.weights / f"workers-{workers}-seed-{seed}.npz").open("wb") as file:
            np.savez(file, **numbered(trained.get_weights()))
    # A seed's graphs hold the training images; ten of them would fill the memory.
    del trained
    tf.keras.backend.clear_session()
    gc.collect()
    return hits


def deviation(values: list[float]) -> float:
    """Return the standard deviation; not a number for a single value."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def sampling_error(values: Any) -> float:
    """Return the standard error of a mean over the held-out images that comes from the choice of originals.

    The images are warps of a few hundred originals, and a model often gets all warps of one wrong, so the
    originals are the sample, and the mean is a ratio of sums over them (W. Cochran, Sampling Techniques, 3rd
    ed. 1977, chapter 9A).

    Args:
        values: one for each image: whether a run gets it right, or how much more often other runs do.
    """
    _, group = np.unique(data.held_out_originals(), return_inverse=True)
    sizes, totals = np.bincount(group), np.bincount(group, weights=values)
    rest = totals - values.mean() * sizes
    return math.sqrt(len(sizes) / (len(sizes) - 1) * float((rest**2).sum())) / len(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--profile", choices=sorted(LOOPS), default="local-sgd")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--average-every", type=int, default=16, help="local-sgd: steps")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--steps-per-epoch", type=int, help="fewer than an epoch has")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--weights", type=Path, help="save each run's final weights in this folder")
    parser.add_argument("--least", type=float, default=0.0, help="the mean held-out accuracy to reach")
    parser.add_argument("--within", type=float, default=1.0, help="of the mean of the first of --workers")
    options = parser.parse_args()
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * max(options.workers)
    tf.config.set_logical_device_configuration(cpu, devices)
    given = data.load("synthetic", options.cache)
    found: dict[int, list[Any]] = {workers: [] for workers in options.workers}
    for seed in range(options.seed, options.seed + options.seeds):
        for workers in options.workers:
            found[workers].append(run(options, given, workers, seed))

    head = f"{'workers':<9}{'mean':<8}{'deviation':<11}{'least - most':<17}"
    print(f"\n{head}difference (its error by seed, by digit)")
    first = np.array(found[options.workers[0]], float)
    good = True
    for workers, runs in found.items():
        hits = np.array(runs, float)  # a row a seed, a column an image
        values = [float(value) for value in hits.mean(axis=1)]
        differences = [float(value) for value in (hits - first).mean(axis=1)]
        mean, difference = statistics.fmean(values), statistics.fmean(differences)
        line = f"{workers:<9}{mean:<8.4f}{deviation(values):<11.4f}{min(values):.4f} - {max(values):.4f}"
        if workers != options.workers[0]:
            by_seed = deviation(differences) / math.sqrt(len(differences))
            by_digit = sampling_error((hits - first).mean(axis=0))
            line += f"  {difference:+.4f} ({by_seed:.4f}, {by_digit:.4f})"
        print(line)
        good &= mean >= options.least and difference >= -options.within
    one = statistics.fmean(sampling_error(hits) for runs in found.values() for hits in runs)
    print(
        f"{len(given.y_test)} held-out images are warps of {data.HELD_OUT} digits: "
        f"the standard error of one run's accuracy is {one:.4f} by the choice of digits"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
