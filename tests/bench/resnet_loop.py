"""The speed of ResNet's own training loop beside Keras's `fit`, on the same network and random images:

    .venv/bin/python -m tests.bench.resnet_loop --cycles 5
    .venv/bin/python -m tests.bench.resnet_loop --network resnet50

Both ways run in one process, some steps of each in turns, every second cycle backwards, so that other load on
the host affects both alike. `fit` gets what Keras has for the same training: SGD with momentum, a loss
with smoothed labels, `steps_per_execution`, and on GPUs a `LossScaleOptimizer`; the loop's weight decay and
rates have no counterpart there. The output is images a second of each way, and the median over the cycles,
with the least and the most, of fit's time divided by the loop's: more than 1 means that `fit` is slower.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.figures import enter_training_environment, in_turns, parser, ratios, spread

if TYPE_CHECKING:
    from workload.resnet.options import Options

PRINTS = r"^loop: \d+\.\d.* images/s\nfit: \d+\.\d.* images/s\nfit / loop: \d+\.\d{3}"


def own_loop(options: Options, mixed: bool) -> Any:
    """Return a function that trains some calls of CALL_STEPS steps by `workload.resnet.training`."""
    import tensorflow as tf

    from workload.resnet import images
    from workload.resnet.training import CALL_STEPS, Training, Watch

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
    import tensorflow as tf

    from workload.resnet import images, network
    from workload.resnet.descent import MOMENTUM, SMOOTHING
    from workload.resnet.training import CALL_STEPS

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


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, cycles=1, calls=1, batch=2, image_size=32)
    arguments.add_argument("--network", choices=("tiny", "resnet50"), default="tiny")
    arguments.add_argument("--cycles", type=int, default=5)
    arguments.add_argument("--calls", type=int, default=20, help="calls of several steps each in a turn")
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--image-size", type=int, default=64)
    return arguments


def main() -> int:
    chosen = options().parse_args()
    enter_training_environment("resnet_loop")
    import tensorflow as tf

    from workload.resnet.options import Options
    from workload.resnet.training import CALL_STEPS

    mixed = bool(tf.config.list_physical_devices("GPU"))
    with tempfile.TemporaryDirectory() as name:
        folder, size = Path(name), chosen.image_size
        training = Options(
            folder, folder, data="synthetic", network=chosen.network, batch=chosen.batch, image_size=size
        )
        ways = {"loop": own_loop(training, mixed), "fit": keras_fit(training, mixed)}
        for run in ways.values():  # the first call makes the graph
            run(1)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _, way in in_turns(list(ways), chosen.cycles):
            began = time.monotonic()
            ways[way](chosen.calls)
            seconds[way].append(time.monotonic() - began)
    count = chosen.calls * CALL_STEPS * chosen.batch
    for way, taken in seconds.items():
        print(f"{way}: {spread([count / each for each in taken])} images/s")
    print(f"fit / loop: {spread(ratios(seconds['fit'], seconds['loop']), 3)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
