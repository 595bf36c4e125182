"""The profile `sync`: synchronous SGD with the published mathematics and little else.

Many steps run inside one TensorFlow function, the data lies in memory as bytes, and a step has a single
all-reduce: the gradients of all variables in one flat vector, with the loss and the number of right answers
as its last two elements. The order of the data depends on seed and epoch only, and replica r of R takes the
r-th part of each global batch: so N workers at batch B compute what one worker at batch N·B computes.

Up to rounding, that is: a sum over 128 examples and the sum of two over 64 differ in the last bit, and at
the published learning rate, near the edge of stability, such a difference grows tenfold every few steps until
the weights have nothing in common. Therefore a batch is computed in parts (of the published 64 examples, on
CPUs, where that costs no time) which are added in halves: two workers then end with the weights of one
worker at twice the batch bit for bit, however long they train. Of more workers TensorFlow's all-reduce adds
in another order.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import tensorflow as tf

from workload import model as keras_model
from workload.errors import WorkloadError
from workload.loop import Between, Plan, Position, Report, State, go_on

STEPS_A_CALL = 10
"""More cost no less time, and a training that is told to end does so only after a call."""


def train(plan: Plan, report: Report, start: State | None = None, between: Between = go_on) -> Any:
    """Train and return the model.

    It can be interrupted between two calls. Whoever goes on from that state makes the same calls over the
    same examples, so the weights and the history are those of an uninterrupted run, bit for bit.

    Raises:
        StoppedError: by `between`.
        WorkloadError: the global batch cannot be shared evenly by the replicas, or the training diverged.
    """
    # It would turn the additions of `added` into one of many terms, whose order is another.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.keras.utils.set_random_seed(plan.seed)
    with plan.strategy.scope():
        model = keras_model.build()
        if start is not None:
            model.set_weights(start.weights)
    call = _steps_function(plan, model)
    at = Position() if start is None else start.position
    order = None
    while at.step < plan.epochs * plan.steps:
        started = time.monotonic()
        epoch, first = divmod(at.step, plan.steps)
        if order is None or first == 0:
            order = _order(plan, epoch + 1)
        count = min(STEPS_A_CALL, plan.steps - first)
        # Python numbers would make TensorFlow trace the function anew for each.
        sums = call(order, tf.constant(first), tf.constant(count))
        loss, right = at.loss + float(sums[0]), at.right + float(sums[1])
        at = Position(at.step + count, loss, right, at.seconds + time.monotonic() - started)
        if first + count == plan.steps:
            report(at.epoch(plan.steps, plan.global_batch))
            at = Position(at.step)
        between(at.step, functools.partial(_state, at, model))
    return model


def _order(plan: Plan, epoch: int) -> Any:
    """The examples of an epoch (from 1) in the order of their use."""
    with tf.device("CPU:0"):  # one kind of device, one order
        return tf.random.experimental.stateless_shuffle(
            tf.range(len(plan.data.x_train)), seed=[plan.seed, epoch]
        )


def _state(at: Position, model: Any) -> State:
    return State(at, model.get_weights())


def _steps_function(plan: Plan, model: Any) -> Any:
    """`f(order, first, count)`: `count` steps from step `first`; the sums of loss and right answers."""
    replicas = plan.strategy.num_replicas_in_sync
    share, rest = divmod(plan.global_batch, replicas * plan.parts)
    if rest:
        raise WorkloadError(
            f"a batch of {plan.global_batch} cannot be shared evenly by {replicas} replicas "
            f"in {plan.parts} part(s)"
        )
    images = tf.constant(plan.data.x_train)
    labels = tf.constant(plan.data.y_train, dtype=tf.int64)
    variables = model.trainable_variables
    sizes = [v.shape.num_elements() for v in variables] + [2]

    def one_part(rows: Any) -> list[Any]:
        """The sums over these examples: each variable's gradient, then [loss, right answers]."""
        x = tf.cast(tf.gather(images, rows), tf.float32) / 255.0
        y = tf.gather(labels, rows)
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        right = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=1) == y, tf.float32))
        return [*tape.gradient(loss, variables), tf.stack([loss, right])]

    def added(order: Any, first: Any, parts: int) -> list[Any]:
        """The sums over `parts` parts from example `first`: the first half's plus the second half's."""
        if parts == 1:
            return one_part(tf.gather(order, tf.range(first, first + share)))
        half = parts // 2
        left = added(order, first, half)
        right = added(order, first + half * share, parts - half)
        return [a + b for a, b in zip(left, right, strict=True)]

    def step(order: Any, number: Any) -> Any:
        context = tf.distribute.get_replica_context()
        first = number * plan.global_batch + context.replica_id_in_sync_group * share * plan.parts
        sums = added(order, first, plan.parts)
        if replicas > 1:
            flat = tf.concat([tf.reshape(s, [-1]) for s in sums], axis=0)
            parts = tf.split(context.all_reduce(tf.distribute.ReduceOp.SUM, flat), sizes)
            sums = [tf.reshape(part, s.shape) for part, s in zip(parts, sums, strict=True)]
        *gradients, counted = sums
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(plan.learning_rate / plan.global_batch * gradient)
        return counted

    def one_more(order: Any, number: Any, last: Any, total: Any) -> Any:
        # Outside of `run`: a collective may not stand in a loop within a replica's function.
        out = plan.strategy.run(step, args=(order, number))
        # The same on every replica.
        return order, number + 1, last, total + plan.strategy.experimental_local_results(out)[0]

    def steps(order: Any, first: Any, count: Any) -> Any:
        start = (order, first, first + count, tf.zeros([2]))
        return tf.while_loop(lambda _, number, last, __: number < last, one_more, start)[-1]

    return tf.function(steps, autograph=False)
