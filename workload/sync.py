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

import time
from typing import Any

import tensorflow as tf

from workload import model as keras_model
from workload.errors import WorkloadError
from workload.loop import Epoch, Plan, Report, check_finite

STEPS_A_CALL = 20


def train(plan: Plan, report: Report) -> Any:
    """Train and return the model.

    Raises:
        WorkloadError: the global batch cannot be shared evenly by the replicas, or the training diverged.
    """
    # It would turn the additions of `added` into one of many terms, whose order is another.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.keras.utils.set_random_seed(plan.seed)
    with plan.strategy.scope():
        model = keras_model.build()
    call = _steps_function(plan, model)
    for number in range(1, plan.epochs + 1):
        started = time.monotonic()
        with tf.device("CPU:0"):  # one kind of device, one order
            order = tf.random.experimental.stateless_shuffle(
                tf.range(len(plan.data.x_train)), seed=[plan.seed, number]
            )
        loss = right = 0.0
        for first in range(0, plan.steps, STEPS_A_CALL):
            count = min(STEPS_A_CALL, plan.steps - first)
            # Python numbers would make TensorFlow trace the function anew for each.
            sums = call(order, tf.constant(first), tf.constant(count))
            loss, right = loss + float(sums[0]), right + float(sums[1])
        seen = plan.steps * plan.global_batch
        epoch = Epoch(number, loss / seen, right / seen, time.monotonic() - started)
        check_finite(epoch)
        report(epoch)
    return model


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
