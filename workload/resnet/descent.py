"""The optimizer: SGD with momentum, a learning rate for large batches, and a scaled loss.

The recipe is the published one: the learning rate grows with the batch, over a warm-up of ten epochs, and
falls along a polynomial to nothing. Weight decay leaves out biases and normalizations.
Source: Goyal et al., arXiv:1706.02677; You et al., arXiv:1708.03888 for the polynomial of power 2.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

PUBLISHED_BATCH = 256
"""The images of a step to which the given learning rate belongs."""
POWER = 2.0
MOMENTUM = 0.9
DECAY = 5e-5
SMOOTHING = 0.1
FIRST_SCALE = 2.0**15
"""The first factor of the loss in float16. Without a factor, small gradients would become 0."""
GROW_STEPS = 2000
"""The steps without an overflow after which the factor is doubled."""


class Schedule:
    """The learning rate of each step.

    Args:
        peak: The highest rate.
        steps: The steps of the whole training.
        warmup: The steps until the highest rate.
    """

    def __init__(self, peak: float, steps: int, warmup: int) -> None:
        self.peak, self._steps, self._warmup = peak, steps, min(warmup, steps - 1)

    def rate(self, step: Any) -> Any:
        """Return the rate of a step. Steps count from 0."""
        at = tf.cast(step, tf.float32)
        rising = self.peak * (at + 1) / max(self._warmup, 1)
        left = 1 - (at - self._warmup) / max(self._steps - self._warmup, 1)
        return tf.where(at < self._warmup, rising, self.peak * tf.maximum(left, 0.0) ** POWER)


class Descent:
    """The optimizer and its state, which belongs to a checkpoint. Create it in the strategy's scope."""

    def __init__(self, variables: list[Any], schedule: Schedule, *, scaled: bool) -> None:
        self._variables, self._schedule, self._scaled = variables, schedule, scaled
        self.momentum = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
        self.step = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.scale = tf.Variable(FIRST_SCALE if scaled else 1.0, trainable=False)
        self.good = tf.Variable(0, trainable=False)

    def apply(self, sums: list[Any], replicas: int) -> None:
        """Change the weights by the scaled mean gradients, summed over `replicas` replicas.

        Every replica calls this with the same sums. A step whose gradients overflow changes no weight.
        """
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in sums])
        rate = tf.where(finite, self._schedule.rate(self.step), 0.0)
        factor = 1 / (self.scale * replicas)
        for variable, momentum, summed in zip(self._variables, self.momentum, sums, strict=True):
            gradient = summed * factor
            if len(variable.shape) > 1:
                gradient = gradient + DECAY * variable
            # 0 times infinity is NaN, so a gradient that overflowed is left out before the product with the
            # rate.
            kept = tf.where(finite, MOMENTUM * momentum + gradient, momentum)
            momentum.assign(kept)
            variable.assign_sub(rate * kept)
        if self._scaled:
            good = tf.where(finite, self.good + 1, 0)
            grown = tf.where(good >= GROW_STEPS, self.scale * 2, self.scale)
            self.scale.assign(tf.where(finite, grown, tf.maximum(self.scale / 2, 1.0)))
            self.good.assign(tf.where(good >= GROW_STEPS, 0, good))
        self.step.assign_add(1)


def loss(labels: Any, logits: Any) -> Any:
    """Return the loss of each image, with smoothed labels."""
    classes = logits.shape[-1]
    wanted = tf.one_hot(labels, classes) * (1 - SMOOTHING) + SMOOTHING / classes
    return tf.nn.softmax_cross_entropy_with_logits(wanted, logits)
