"""The profile `published`: Keras `fit` as in the published articles, whose times it is compared with."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from workload import model as keras_model
from workload.loop import Epoch, Plan, Report, check_finite


def train(plan: Plan, report: Report) -> Any:
    """Train and return the model."""
    tf.keras.utils.set_random_seed(plan.seed)
    dataset = _dataset(plan)
    with plan.strategy.scope():
        model = keras_model.build()
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(learning_rate=plan.learning_rate),
            metrics=["accuracy"],
        )
    model.fit(
        dataset, epochs=plan.epochs, steps_per_epoch=plan.steps, verbose=0, callbacks=[_reporter(report)]
    )
    return model


def _dataset(plan: Plan) -> Any:
    # The images are uint8 in [0, 255]; the published program turns them into float32 in [0, 1].
    x_train = plan.data.x_train / np.float32(255)
    y_train = plan.data.y_train.astype(np.int64)
    return (
        tf.data.Dataset.from_tensor_slices((x_train, y_train))
        .shuffle(60000)
        .repeat()
        .batch(plan.global_batch)
    )


def _reporter(report: Report) -> Any:
    started = 0.0

    def begin(number: int, _: Any) -> None:
        nonlocal started
        started = time.monotonic()

    def end(number: int, logs: dict[str, float]) -> None:
        epoch = Epoch(number + 1, float(logs["loss"]), float(logs["accuracy"]), time.monotonic() - started)
        check_finite(epoch)
        report(epoch)

    return tf.keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_epoch_end=end)
