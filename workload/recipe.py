"""What `sync` and `local-sgd` share: the order of the data, the gradient, and the learning rate's schedule.

The published learning rate, 0.2 at 64 examples a step, is near the edge of stability. Published runs keep it
for every number of workers: eight workers take an eighth of the steps and end with a worse model. Here the
rate grows with the batch, over a warm-up, and falls to zero along a cosine. Gradients are clipped to `CLIP`;
without that a training with a scaled rate diverges. Up to the published batch the rate is constant and
gradients are not clipped, as published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from workload.loop import Plan

PUBLISHED_BATCH = 64
"""The examples of a step to which `Plan.learning_rate` belongs."""
CLIP = 0.5
"""The largest global norm of the mean gradient over the batch of all workers."""
WARM_UP = 0.125
"""The part of all steps that is the warm-up: one epoch of the published eight."""


def order(plan: Plan, epoch: int) -> Any:
    """Return the order of an epoch's examples. It depends only on the seed and the epoch (from 1)."""
    with tf.device("CPU:0"):  # on a GPU the order might be another
        return tf.random.experimental.stateless_shuffle(
            tf.range(len(plan.data.x_train)), seed=[plan.seed, epoch]
        )


class Descent:
    """The length of a step: learning rate and clipping.

    Args:
        scale: the learning rate's peak as a multiple of the published rate.
        clip: the largest global norm of a mean gradient.
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
        """Return the factor by which sums of gradients are multiplied and then subtracted from the weights.

        Args:
            step: the number of the step in the whole training, from 0.
            sums: the gradients, summed over the examples.
            examples: how many examples there are.
        """
        if self._rate is None:
            return self._peak / examples
        norm = tf.linalg.global_norm(sums) / examples
        return self._rate(step) * tf.minimum(1.0, self._clip / tf.maximum(norm, 1e-12)) / examples


def gradient_of_rows(plan: Plan, model: Any) -> Callable[[Any], list[Any]]:
    """Return `f(rows)`, which sums over these examples: each variable's gradient, [loss, right answers]."""
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
