"""The profile `sync`: synchronous SGD. Each step is what one worker does with the whole batch.

Many steps run inside one TensorFlow function, the data lies in memory as bytes, and a step has a single
exchange: the gradients of all variables, with the loss and the number of right answers. The order of the data
depends only on seed and epoch, and replica r of R takes the r-th part of each global batch. So N workers with
batch B compute what one worker with batch N·B computes, up to rounding.

Rounding matters: the sum over 128 examples and the sum of two sums over 64 differ in the last bit. At
learning rates near the edge of stability such a difference grows tenfold every few steps, until the weights
have nothing in common. Therefore a batch is computed in parts (of the published 64 examples, on CPUs, where
that costs no time), which are added in halves. Two workers then end with the weights of one worker at twice
the batch, bit for bit, however long they train. With more workers the all-reduce adds in another order.

The published learning rate, 0.2 at 64 examples a step, is near the edge of stability. Published runs keep it
for every number of workers: eight workers take an eighth of the steps and end with a worse model. Here the
rate grows with the batch, over a warm-up, and falls to zero along a cosine. Gradients are clipped to `CLIP`;
without that a training with a scaled rate diverges. Up to the published batch the rate is constant and
gradients are not clipped, as published. `local-sgd` shares this recipe: the order of the data, the gradient,
and the learning rate's schedule.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from workload import workers
from workload.errors import WorkloadError
from workload.loop import Between, Plan, Position, Report, State, go_on
from workload.published import build_model

PUBLISHED_BATCH = 64
"""The examples of a step to which `Plan.learning_rate` belongs."""
CLIP = 0.5
"""The largest global norm of the mean gradient over the batch of all workers."""
WARM_UP = 0.125
"""The part of all steps that is the warm-up: one epoch of the published eight."""
STEPS_A_CALL = 10
"""The steps of one TensorFlow call. More would not be faster, and a training can end only after a call."""


def epoch_order(plan: Plan, epoch: int) -> Any:
    """Return the order of an epoch's examples. It depends only on the seed and the epoch (from 1)."""
    with tf.device("CPU:0"):  # on a GPU the order might be another
        return tf.random.experimental.stateless_shuffle(
            tf.range(len(plan.data.x_train)), seed=[plan.seed, epoch]
        )


class Descent:
    """The length of a step: learning rate and clipping.

    Args:
        scale: The learning rate's peak as a multiple of the published rate.
        clip: The largest global norm of a mean gradient.
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
            step: The number of the step in the whole training, from 0.
            sums: The gradients, summed over the examples.
            examples: How many examples there are.
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


def train(plan: Plan, report: Report, start: State | None = None, between: Between = go_on) -> Any:
    """Train and return the model.

    The training can be interrupted between two calls. A run that continues from that state makes the same
    calls over the same examples, so the weights and the history are those of an uninterrupted run, bit for
    bit.

    Raises:
        StoppedError: `between` raises it to end the training.
        WorkloadError: The global batch cannot be shared evenly by the replicas, or the training diverged.
    """
    # This optimization would join the additions of `added` into one sum, whose order is different.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.keras.utils.set_random_seed(plan.seed)
    group = workers.of(plan.strategy, plan.ring)
    with group.scope():
        model = build_model()
        model.set_weights(group.shared(model.get_weights()) if start is None else start.weights)
    call = _steps_function(plan, group, model)
    at = Position() if start is None else start.position
    order = None
    spent = _Spent(plan)
    while at.step < plan.epochs * plan.steps:
        started = time.monotonic()
        epoch, first = divmod(at.step, plan.steps)
        if order is None or first == 0:
            order = epoch_order(plan, epoch + 1)
        count = min(STEPS_A_CALL, plan.steps - first)
        # Python numbers would make TensorFlow trace the function anew for each.
        sums = call(order, *map(tf.constant, (at.step - first, first, count)))
        loss, right = at.loss + float(sums[0]), at.right + float(sums[1])
        took = time.monotonic() - started
        spent.add(count, took)
        at = Position(at.step + count, loss, right, at.seconds + took)
        if first + count == plan.steps:
            report(at.epoch(plan.steps, plan.global_batch))
            at = Position(at.step)
        between(at.step, functools.partial(_state, at, model))
    plan.tell(spent.means())
    return model


class _Spent:
    """How the time of a worker in a ring was spent, without the first call, in which TensorFlow traces."""

    def __init__(self, plan: Plan) -> None:
        self._ring = plan.ring
        self._steps = 0
        self._seconds = self._before = 0.0
        self._first = True

    def add(self, steps: int, seconds: float) -> None:
        if self._first:
            self._first = False
            self._before = self._ring.seconds if self._ring is not None else 0.0
        else:
            self._steps += steps
            self._seconds += seconds

    def means(self) -> dict[str, float]:
        """Return the mean seconds of a step and of an exchange; nothing if they were not measured apart."""
        if self._ring is None or not self._steps:
            return {}
        exchanging = self._ring.seconds - self._before
        return {
            "mean_step_seconds": (self._seconds - exchanging) / self._steps,
            "mean_exchange_seconds": exchanging / self._steps,
        }


def _state(at: Position, model: Any) -> State:
    return State(at, model.get_weights())


def _steps_function(plan: Plan, group: workers.Workers, model: Any) -> Any:
    """Return `f(order, begun, first, count)`, which returns the sums of loss and right answers.

    It trains `count` steps from step `first` of the epoch that begins at step `begun` of all.
    """
    replicas = group.size
    share, rest = divmod(plan.global_batch, replicas * plan.parts)
    if rest:
        raise WorkloadError(
            f"a batch of {plan.global_batch} cannot be shared evenly by {replicas} replicas "
            f"in {plan.parts} part(s)"
        )
    variables = model.trainable_variables
    one_part = gradient_of_rows(plan, model)
    descent = Descent(plan, plan.global_batch / PUBLISHED_BATCH)

    def added(order: Any, first: Any, parts: int) -> list[Any]:
        """Return the sums over `parts` parts from example `first`, added in halves."""
        if parts == 1:
            return one_part(tf.gather(order, tf.range(first, first + share)))
        half = parts // 2
        left = added(order, first, half)
        right = added(order, first + half * share, parts - half)
        return [a + b for a, b in zip(left, right, strict=True)]

    def step(order: Any, begun: Any, number: Any) -> Any:
        first = number * plan.global_batch + group.number() * share * plan.parts
        sums = added(order, first, plan.parts)
        if replicas > 1:
            sums = group.sums(sums)
        *gradients, counted = sums
        factor = descent.factor(begun + number, gradients, plan.global_batch)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(factor * gradient)
        return counted

    def steps(order: Any, begun: Any, first: Any, count: Any) -> Any:
        def one_more(number: Any, total: Any) -> Any:
            # The loop is outside of `run`, because a replica's function must not have a collective in a loop.
            out = group.run(step, order, begun, number)
            # Every replica has the same sums.
            return number + 1, total + group.mine(out)[0]

        return tf.while_loop(lambda number, _: number < first + count, one_more, (first, tf.zeros([2])))[-1]

    return tf.function(steps, autograph=False)
