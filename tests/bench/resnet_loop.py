"""The speed of ResNet's own training loop beside Keras's `fit`, on the same network and random images:

    TF_USE_LEGACY_KERAS=1 PYTHONPATH=. <environment>/bin/python tests/bench/resnet_loop.py --cycles 5
    TF_USE_LEGACY_KERAS=1 PYTHONPATH=. <environment>/bin/python tests/bench/resnet_loop.py --network resnet50

Both ways run in one process, some steps of each in turns, every second cycle backwards, so that other load on
the host affects both alike. `fit` gets what Keras has for the same training: SGD with momentum, a loss
with smoothed labels, `steps_per_execution`, and on GPUs a `LossScaleOptimizer`; the loop's weight decay and
rates have no counterpart there. The output is images a second of each way, and the median over the cycles,
with the least and the most, of fit's time divided by the loop's: more than 1 means that `fit` is slower.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from workload.resnet import images, network
from workload.resnet.descent import MOMENTUM, SMOOTHING
from workload.resnet.options import Options
from workload.resnet.training import CALL_STEPS, Training, Watch


def own_loop(options: Options, mixed: bool) -> Any:
    """Return a function that trains some calls of CALL_STEPS steps by `workload.resnet.training`."""
    watch = Watch(lambda _epoch: None, print, lambda: False)
    data = images.find(options)
    strategy = tf.distribute.get_strategy()
    training = Training(options, strategy, data, True, watch, mixed=mixed)
    steps, iterator = training._steps_function(), training._iterator(0, 0)

    def run(calls: int) -> None:
        for _ in range(calls):
            sums = steps(iterator, tf.constant(CALL_STEPS), tf.constant(0.0))
            [float(value) for value in sums]

    return run


def keras_fit(options: Options, mixed: bool) -> Any:
    """Return a function that trains as many steps by one call of Keras's `fit`."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16" if mixed else "float32")
    found = images.find(options)
    model = network.build(options.network, found.classes, options.image_size)
    optimizer = tf.keras.optimizers.SGD(options.learning_rate, momentum=MOMENTUM)
    model.compile(
        optimizer=tf.keras.mixed_precision.LossScaleOptimizer(optimizer) if mixed else optimizer,
        loss=tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING),
        metrics=["accuracy"],
        steps_per_execution=CALL_STEPS,
    )
    data = images.training(found, options, tf.distribute.InputContext(), 0, 0)
    data = data.map(lambda pixels, labels: (pixels, tf.one_hot(labels, found.classes)))

    def run(calls: int) -> None:
        model.fit(data, steps_per_epoch=CALL_STEPS * calls, epochs=1, verbose=0)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--network", choices=("tiny", "resnet50"), default="tiny")
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20, help=f"calls of {CALL_STEPS} steps in each turn")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=64)
    chosen = parser.parse_args()
    mixed = bool(tf.config.list_physical_devices("GPU"))
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            Path(folder), Path(folder), data="synthetic", network=chosen.network, batch=chosen.batch,
            image_size=chosen.image_size,
        )  # fmt: skip
        ways = {"loop": own_loop(options, mixed), "fit": keras_fit(options, mixed)}
        for run in ways.values():  # the first call makes the graph
            run(1)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for cycle in range(chosen.cycles):
            for name, run in list(ways.items())[:: -1 if cycle % 2 else 1]:
                began = time.monotonic()
                run(chosen.calls)
                seconds[name].append(time.monotonic() - began)
    count = chosen.calls * CALL_STEPS * chosen.batch
    for name, taken in seconds.items():
        print(f"{name}: {count / statistics.median(taken):.1f} images/s")
    ratios = [fit / loop for loop, fit in zip(seconds["loop"], seconds["fit"], strict=True)]
    print(f"fit / loop: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
