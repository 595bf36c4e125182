"""The profile `local-sgd`: workers train alone for some steps, then take the mean of their weights.

Synchronous SGD sends 11 MB a worker and step for this model, which takes longer than the step. Here the same
11 MB go once a *round* of H steps. Replica r of R trains with a batch of its own on the r-th part of each
global batch, so each example is seen once an epoch, as in `sync`. At the end of a round one exchange
takes the mean of the weights, and the sums of loss and right answers with it.

The mean alone makes slow progress with many workers: R workers that each take H steps move about as far as
one of them, on R times the examples. `sync` makes up for that with R times the learning rate; here the factor
is shared. The inner rate is the root of R times the published one, and gradients may be as much longer before
they are clipped, because over an R-th of the batch they have that much more noise; clipped as in `sync`, they
would be little else. The move of a round, from one mean to the next, is an outer step of its own with
Nesterov's momentum 1 - 1/sqrt(R) (blockwise model-update filtering: K. Chen and Q. Huo, ICASSP 2016), so that
a move is worth sqrt(R) of them by and by. Measured with eight workers: all of the factor in the momentum, and
gradients clipped as in `sync`, ends at .966 held out where this ends at .983.

Up to `UNSCALED` workers the momentum is enough, and the inner steps are the published recipe's: its rate,
constant, and whole gradients. Measured with two workers after four epochs: .984 held out, where the scaled
rate, the cosine and clipped gradients end at .971. One worker has no outer step, and trains exactly as `sync`
does.

The inner steps have no momentum, so nothing else has to be averaged, and each worker clips its own gradient,
so that nothing has to be agreed on within a round.

Between two rounds all workers have the same weights and momentum, so the chief's checkpoint is everybody's.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from workload import model as keras_model
from workload import recipe, workers
from workload.errors import WorkloadError
from workload.loop import Between, Plan, Position, Report, State, go_on
from workload.scaling import choose

UNSCALED = 2
"""Up to so many workers the inner rate is not scaled for their number."""
ALONE = 10
"""Steps a call of one worker, which has nobody to average with."""
PROBES = (1, 4, 4, 4)
"""Steps of the rounds that are measured; the first is TensorFlow's to trace the functions."""


def train(plan: Plan, report: Report, start: State | None = None, between: Between = go_on) -> Any:
    """Train and return the model.

    It can be interrupted between two rounds, once their length is known. Whoever goes on from that state with
    as many workers makes the same rounds over the same examples.

    Raises:
        StoppedError: by `between`.
        WorkloadError: the global batch cannot be shared evenly by the replicas, or the training diverged.
    """
    tf.keras.utils.set_random_seed(plan.seed)
    group = workers.of(plan.strategy, plan.ring)
    with group.scope():
        model = keras_model.build()
        model.set_weights(group.shared(model.get_weights()) if start is None else start.weights)
    rounds = _Rounds(plan, group, model, start.momentum if start is not None else ())
    every = start.average_every if start is not None else plan.average_every
    if group.size == 1:
        every = ALONE
    elif every is not None:
        plan.tell({"average_every": every})
    probes: list[_Times] = []
    spent = _Spent()
    at = Position() if start is None else start.position
    order = None
    while at.step < plan.epochs * plan.steps:
        started = time.monotonic()
        epoch, first = divmod(at.step, plan.steps)
        if order is None or first == 0:
            order = recipe.order(plan, epoch + 1)
        count = min(every or PROBES[len(probes)], plan.steps - first)
        sums, times = rounds.one(order, at.step - first, first, count)
        loss, right = at.loss + float(sums[0]), at.right + float(sums[1])
        at = Position(at.step + count, loss, right, at.seconds + time.monotonic() - started)
        spent.add(count, times)
        if every is None:
            probes.append(times)
            if len(probes) == len(PROBES):
                every = _agree(plan, group, probes[1:])
        if first + count == plan.steps:
            report(at.epoch(plan.steps, plan.global_batch))
            at = Position(at.step)
        if every is not None:
            between(at.step, functools.partial(_state, at, model, rounds, every))
    plan.tell(spent.means())
    return model


def _state(at: Position, model: Any, rounds: _Rounds, every: int) -> State:
    return State(at, model.get_weights(), every, [m.numpy() for m in rounds.momentum])


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of one round."""

    step: float
    """One of its steps, on this worker."""
    averaging: float
    """With the wait for slower workers."""


@dataclass(slots=True)
class _Spent:
    """Where the time went on this worker, without the first round, in which TensorFlow traces functions."""

    rounds: int = 0
    steps: int = 0
    computing: float = 0.0
    averaging: float = 0.0

    def add(self, steps: int, times: _Times) -> None:
        self.rounds += 1
        if self.rounds > 1:
            self.steps += steps
            self.computing += steps * times.step
            self.averaging += times.averaging

    def means(self) -> dict[str, float]:
        """The mean seconds of a step and of an averaging; nothing for a training of one round."""
        if self.rounds < 2:
            return {}
        found = {"mean_step_seconds": self.computing / self.steps}
        if self.averaging:
            found["mean_exchange_seconds"] = self.averaging / (self.rounds - 1)
        return found


def _agree(plan: Plan, group: workers.Workers, probes: Sequence[_Times]) -> int:
    """The same number of steps a round on every worker, from what each has measured.

    The slowest worker's step counts, and the shortest averaging: that of who came last and waited for nobody.
    """
    mine = tf.constant([min(p.step for p in probes), min(p.averaging for p in probes)], tf.float32)

    def share() -> Any:
        place = tf.one_hot(group.number(), group.size)
        return group.sums([place[:, None] * mine[None, :]])[0]

    shared = tf.function(lambda: group.run(share), autograph=False)()
    all_of_them = group.mine(shared)[0].numpy()
    step, averaging = float(all_of_them[:, 0].max()), float(all_of_them[:, 1].min())
    every = choose(step, averaging, plan.steps)
    plan.tell({"average_every": every, "step_seconds": step, "averaging_seconds": averaging})
    return every


class _Rounds:
    """The two functions of a round, and the outer step's state."""

    def __init__(self, plan: Plan, group: workers.Workers, model: Any, momentum: Sequence[Any]) -> None:
        self._plan, self._group = plan, group
        self._replicas = group.size
        self._beta = 1 - 1 / math.sqrt(self._replicas)
        self._batch, rest = divmod(plan.global_batch, self._replicas)
        if rest:
            raise WorkloadError(
                f"a batch of {plan.global_batch} cannot be shared evenly by {self._replicas} replicas"
            )
        self._variables = model.trainable_variables
        # The weights at the round's beginning and the outer momentum: the same on every replica.
        self.momentum: list[Any] = []
        self._begun: list[Any] = []
        if self._replicas > 1:
            with group.scope():
                self._begun = [tf.Variable(v, trainable=False) for v in self._variables]
                self.momentum = [
                    tf.Variable(momentum[i] if momentum else tf.zeros_like(v), trainable=False)
                    for i, v in enumerate(self._variables)
                ]
        self._steps = self._steps_function(recipe.gradient_of_rows(plan, model))
        self._average = self._average_function()

    def one(self, order: Any, begun: int, first: int, count: int) -> tuple[Any, _Times]:
        """A round of `count` steps from step `first` of the epoch that begins at step `begun` of all.

        Returns:
            The sums of loss and right answers over the examples of all workers, and how long it took.
        """
        started = time.monotonic()
        # Python numbers would make TensorFlow trace the function anew for each.
        sums = self._steps(order, *map(tf.constant, (begun, first, count)))
        local = [value.numpy() for value in self._group.mine(sums)]
        trained = time.monotonic()
        if self._replicas == 1:
            return local[0], _Times((trained - started) / count, 0.0)
        last = begun + first + count == self._plan.epochs * self._plan.steps
        # The training ends at the mean itself.
        ahead = tf.constant(0.0 if last else self._beta)
        total = self._group.mine(self._average(sums, ahead))[0].numpy()
        return total, _Times((trained - started) / count, time.monotonic() - trained)

    def _steps_function(self, gradient: Any) -> Any:
        plan, group, batch = self._plan, self._group, self._batch
        root = math.sqrt(self._replicas)
        scale = (root if self._replicas > UNSCALED else 1.0) * batch / recipe.PUBLISHED_BATCH
        descent = recipe.Descent(plan, scale, recipe.CLIP * root)

        def steps(order: Any, begun: Any, first: Any, count: Any) -> Any:
            place = group.number() * batch

            def one_more(number: Any, total: Any) -> Any:
                start = number * plan.global_batch + place
                *gradients, counted = gradient(tf.gather(order, tf.range(start, start + batch)))
                factor = descent.factor(begun + number, gradients, batch)
                # In a replica's context this changes the replica's own copy alone: they go their own ways.
                updates = [v.assign_sub(factor * g) for v, g in zip(self._variables, gradients, strict=True)]
                with tf.control_dependencies(updates):
                    return number + 1, total + counted

            return tf.while_loop(lambda number, _: number < first + count, one_more, (first, tf.zeros([2])))[
                -1
            ]

        return tf.function(lambda *args: group.run(steps, *args), autograph=False)

    def _average_function(self) -> Any:
        beta, group = self._beta, self._group

        def average(counted: Any, ahead: Any) -> Any:
            *parts, total = group.sums([*(tf.identity(v) for v in self._variables), counted])
            for variable, begun, momentum, part in zip(
                self._variables, self._begun, self.momentum, parts, strict=True
            ):
                mean = part / self._replicas
                moved = momentum.assign(beta * momentum + (mean - begun))
                # Nesterov: the next round begins where the momentum is about to lead.
                variable.assign(begun.assign(mean + ahead * moved))
            return total

        return tf.function(lambda *args: group.run(average, *args), autograph=False)
