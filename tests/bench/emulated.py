"""The held-out accuracy of one and of many workers, over several seeds, emulated in one process:

    .venv/bin/python -m tests.bench.emulated --workers 1 2 --seeds 5

TensorFlow gives the process one logical CPU device for each worker, and the profile's own loop runs on them
as replicas, each with its part of each global batch, as on that many nodes. Only the all-reduce differs;
tests/workload/test_local_sgd.py shows that the results are the same. The times mean nothing here.

Each seed draws other first weights and another order of the examples, and trains every number of workers in
turn. The table has the mean over the seeds, their standard deviation, the least and the most, and the mean
difference to the first number of workers with two standard errors: of other seeds, from the differences of
the same seed, and of another choice of held-out digits.

Exits 1 if a mean is under --least, or further than --within under that of the first number of workers.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.figures import enter_training_environment, parser
from workload.options import BATCH, EPOCHS, LEARNING_RATE, default_cache

if TYPE_CHECKING:
    from workload import data
    from workload.result import Epoch

PRINTS = r"^1 +0\.\d{4} .*\n2 +0\.\d{4} +.* [+-]0\.\d{4} \(.*\)$"


def say(epoch: Epoch) -> None:
    print(
        f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}, {epoch.seconds:.0f} s",
        flush=True,
    )


def run(chosen: argparse.Namespace, given: data.Data, workers: int, seed: int) -> Any:
    """Train, and return which held-out images the model gets right."""
    import numpy as np
    import tensorflow as tf

    from workload import local_sgd, published, sync
    from workload.checkpoint import numbered
    from workload.loop import Plan

    strategy = tf.distribute.get_strategy()
    if workers > 1:
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{n}" for n in range(workers)], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    steps = len(given.x_train) // (BATCH * workers)
    plan = Plan(
        strategy=strategy,
        data=given,
        epochs=chosen.epochs,
        steps=min(steps, chosen.steps_per_epoch or steps),
        global_batch=BATCH * workers,
        learning_rate=chosen.learning_rate,
        seed=seed,
        average_every=chosen.average_every,
    )
    started = time.monotonic()
    trained = {"sync": sync, "local-sgd": local_sgd}[chosen.profile].train(plan, say)
    hits = published.held_out_hits(trained, given.x_test, given.y_test)
    every = f", averages every {chosen.average_every} steps" if chosen.profile == "local-sgd" else ""
    print(
        f"{chosen.profile}, {workers} workers{every}, {plan.epochs} epochs of {plan.steps} steps, seed "
        f"{plan.seed}: held out {hits.mean():.4f} on {given.name}; {time.monotonic() - started:.0f} s, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if chosen.weights is not None:
        chosen.weights.mkdir(parents=True, exist_ok=True)
        with (chosen.weights / f"workers-{workers}-seed-{seed}.npz").open("wb") as file:
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
    import numpy as np

    from workload import data

    _, group = np.unique(data.held_out_originals(), return_inverse=True)
    sizes, totals = np.bincount(group), np.bincount(group, weights=values)
    rest = totals - values.mean() * sizes
    return math.sqrt(len(sizes) / (len(sizes) - 1) * float((rest**2).sum())) / len(values)


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, workers=[1, 2], epochs=1, steps_per_epoch=4)
    arguments.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments.add_argument("--profile", choices=("local-sgd", "sync"), default="local-sgd")
    arguments.add_argument("--epochs", type=int, default=EPOCHS)
    arguments.add_argument("--average-every", type=int, default=16, help="local-sgd: steps")
    arguments.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    arguments.add_argument("--seed", type=int, default=0, help="the first")
    arguments.add_argument("--seeds", type=int, default=1, help="how many")
    arguments.add_argument("--steps-per-epoch", type=int, help="fewer than an epoch has")
    arguments.add_argument("--cache", type=Path, default=default_cache())
    arguments.add_argument("--weights", type=Path, help="save each run's final weights in this folder")
    arguments.add_argument("--least", type=float, default=0.0, help="the mean held-out accuracy to reach")
    arguments.add_argument("--within", type=float, default=1.0, help="of the mean of the first of --workers")
    return arguments


def main() -> int:
    chosen = options().parse_args()
    enter_training_environment("emulated")
    import tensorflow as tf

    from workload import data

    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * max(chosen.workers)
    tf.config.set_logical_device_configuration(cpu, devices)
    given = data.load("synthetic", chosen.cache)
    found: dict[int, list[Any]] = {workers: [] for workers in chosen.workers}
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        for workers in chosen.workers:
            found[workers].append(run(chosen, given, workers, seed))
    return 0 if report(chosen, found) else 1


def report(chosen: argparse.Namespace, found: dict[int, list[Any]]) -> bool:
    """Print the table of the numbers of workers, and return whether the bounds are kept."""
    import numpy as np

    from workload import data

    head = f"{'workers':<9}{'mean':<8}{'deviation':<11}{'least - most':<17}"
    print(f"\n{head}difference (its error by seed, by digit)")
    first = np.array(found[chosen.workers[0]], float)
    good = True
    for workers, runs in found.items():
        hits = np.array(runs, float)  # a row a seed, a column an image
        values = [float(value) for value in hits.mean(axis=1)]
        differences = [float(value) for value in (hits - first).mean(axis=1)]
        mean, difference = statistics.fmean(values), statistics.fmean(differences)
        line = f"{workers:<9}{mean:<8.4f}{deviation(values):<11.4f}{min(values):.4f} - {max(values):.4f}"
        if workers != chosen.workers[0]:
            by_seed = deviation(differences) / math.sqrt(len(differences))
            by_digit = sampling_error((hits - first).mean(axis=0))
            line += f"  {difference:+.4f} ({by_seed:.4f}, {by_digit:.4f})"
        print(line)
        good &= mean >= chosen.least and difference >= -chosen.within
    error = statistics.fmean(sampling_error(hits) for runs in found.values() for hits in runs)
    print(
        f"{first.shape[1]} held-out images are warps of {data.HELD_OUT} digits: "
        f"the standard error of one run's accuracy is {error:.4f} by the choice of digits"
    )
    return good


if __name__ == "__main__":
    sys.exit(main())
