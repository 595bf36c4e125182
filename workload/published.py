"""The published model, and the profile `published`: Keras `fit` as in the published articles.

It is there to compare times with theirs. The other profiles train the same model, exactly: it has 2,770,634
parameters, so the gradient of a step has 11.1 MB.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from workload.loop import Between, Plan, Position, Report, State, go_on

PARAMETERS = 2_770_634


def build_model() -> Any:
    """Return the model without an optimizer. Call this within the strategy's scope.

    `tf.keras` is tf_keras (Keras 2) here, by TF_USE_LEGACY_KERAS: Keras 3 cannot `fit` under
    MultiWorkerMirroredStrategy.
    """
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def held_out_hits(model: Any, images: Any, labels: Any, batch: int = 1000) -> Any:
    """Return which of the held-out images the model gets right, (n,) bool. It runs on this worker alone."""
    forward = tf.function(lambda x: tf.argmax(model(x, training=False), axis=1), autograph=False)
    guesses = [
        forward(tf.cast(images[start : start + batch], tf.float32) / 255.0).numpy()
        for start in range(0, len(images), batch)
    ]
    return np.concatenate(guesses) == labels


def held_out_accuracy(model: Any, images: Any, labels: Any, batch: int = 1000) -> float:
    """Return the share of held-out images that the model gets right. It runs on this worker alone."""
    return float(held_out_hits(model, images, labels, batch).mean())


def train(plan: Plan, report: Report, start: State | None = None, between: Between = go_on) -> Any:
    """Train and return the model.

    The training can be interrupted between any two steps. A run that continues from that state sees the same
    batches, so its final weights equal those of an uninterrupted run bit for bit. Loss and accuracy of the
    interrupted epoch differ: they combine two means in single precision, and within an epoch Keras tells each
    worker the mean over its own share of the examples, so the first mean is over the chief's share.

    Args:
        plan: What to train, and how.
        report: Called after each epoch.
        start: The state to continue from. `None` means from the beginning.
        between: Called between two steps.

    Raises:
        StoppedError: `between` raises it to end the training.
    """
    tf.keras.utils.set_random_seed(plan.seed)
    with plan.strategy.scope():
        model = build_model()
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(learning_rate=plan.learning_rate),
            metrics=["accuracy"],
        )
        if start is not None:
            model.set_weights(start.weights)
    observer = _Observer(plan, Position() if start is None else start.position, report, between)
    while observer.at.step < plan.epochs * plan.steps:
        epoch, first = divmod(observer.at.step, plan.steps)
        model.fit(
            _dataset(plan, observer.at.step),
            initial_epoch=epoch,
            # `fit` has one number of steps for all its epochs, so the rest of an epoch is a separate `fit`.
            epochs=epoch + 1 if first else plan.epochs,
            steps_per_epoch=plan.steps - first,
            verbose=0,
            callbacks=[observer],
        )
    return model


def _dataset(plan: Plan, done: int) -> Any:
    """Return the batches from step `done` on."""
    # The images are uint8 in [0, 255]; the published program turns them into float32 in [0, 1].
    x_train = plan.data.x_train / np.float32(255)
    y_train = plan.data.y_train.astype(np.int64)
    return (
        tf.data.Dataset.from_tensor_slices((x_train, y_train))
        # The seed makes every data set of this run equal, whenever it is made.
        .shuffle(60000, seed=plan.seed)
        .repeat()
        .batch(plan.global_batch)
        .skip(done)
    )


class _Observer(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the steps of one `fit` after another.

    Attributes:
        at: The position at which the present epoch of this `fit` began.
    """

    def __init__(self, plan: Plan, at: Position, report: Report, between: Between) -> None:
        super().__init__()
        # Keras's own callbacks set this too. Without it Keras copies the metrics from the device at every
        # step.
        self._supports_tf_logs = True
        self._plan, self._report, self._between = plan, report, between
        self.at = at
        self._step = at.step
        self._started = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._started = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        if self._step % self._plan.steps:  # `on_epoch_end` handles the last step of an epoch
            self._between(self._step, lambda: State(self._position(logs), self.model.get_weights()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._report(self._position(logs).epoch(self._plan.steps, self._plan.global_batch))
        self.at = Position(self._step)
        self._between(self._step, lambda: State(self.at, self.model.get_weights()))

    def _position(self, logs: Any) -> Position:
        """Return the position. Keras's metrics are means over this epoch in this `fit` (see `train`)."""
        seen = (self._step - self.at.step) * self._plan.global_batch
        return Position(
            self._step,
            self.at.loss + float(logs["loss"]) * seen,
            self.at.right + float(logs["accuracy"]) * seen,
            self.at.seconds + time.monotonic() - self._started,
        )
