"""What `sync` and `local-sgd` share: the order of the data, the gradient, and the learning rate's schedule.

The published learning rate, 0.2 at 64 examples a step, is near the edge of stability, and published runs keep
it however many workers there are: eight of them take an eighth of the steps and end with a worse model. Here
it grows with the batch, over a warm-up, falls to nothing along a cosine, and no gradient is longer than
`CLIP`: without that last rule the training diverges as soon as the rate is scaled. Up to the published batch
nothing is scaled up, and the rate is constant and gradients are whole as published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from workload.loop import Plan

PUBLISHED_BATCH = 64
"""The examples a step for which `Plan.learning_rate` is meant."""
CLIP = 0.5
"""The global norm of the mean gradient over the batch of all workers at most."""
WARM_UP = 0.125
"""Of all steps: one epoch of the published eight."""


def order(plan: Plan, epoch: int) -> Any:
    """The examples of an epoch (from 1) in the order of their use; it depends on seed and epoch only."""
    with tf.device("CPU:0"):  # one kind of device, one order
        return tf.random.experimental.stateless_shuffle(
            tf.range(len(plan.data.x_train)), seed=[plan.seed, epoch]
        )


class Descent:
    """How far a step goes.

    Args:
        scale: the learning rate's peak, in published rates.
        clip: the global norm of a mean gradient at most.
    """

    def __init__(self, plan: Plan, scale: float, clip: float = CLIP) -> None:
        self._peak, self._clip = plan.learning_rate * scale, clip
        self._rate = None
        if scale > 1:
            total = plan.epochs * plan.steps
            warm_up = int(total * WARM_UP)
            self._rate = tf.keras.optimizers.schedules.CosineDecay(
                plan.learning_rate if warm_up else self._peak,
                total - warm_up,
                warmup_target=self._peak if warm_up else None,
                warmup_steps=warm_up,
            )

    def factor(self, step: Any, sums: list[Any], examples: int) -> Any:
        """What sums of gradients over so many examples are multiplied by, and taken from the weights.

        Args:
            step: of all, from 0.
        """
        if self._rate is None:
            return self._peak / examples
        norm = tf.linalg.global_norm(sums) / examples
        return self._rate(step) * tf.minimum(1.0, self._clip / tf.maximum(norm, 1e-12)) / examples


def gradient_of_rows(plan: Plan, model: Any) -> Callable[[Any], list[Any]]:
    """`f(rows)`: the sums over these examples: each variable's gradient, then [loss, right answers]."""
    images = tf.constant(plan.data.x_train)
    labels = tf.constant(plan.data.y_train, dtype=tf.int64)
    variables = model.trainable_variables

    def sums(rows: Any) -> list[Any]:
        x = tf.cast(tf.gather(images, rows), tf.float32) / 255.0
        y = tf.gather(labels, rows)
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        right = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=1) == y, tf.float32))
        return [*tape.gradient(loss, variables), tf.stack([loss, right])]

    return sums
