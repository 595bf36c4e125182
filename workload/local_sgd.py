"""The profile `local-sgd`: workers train alone for some steps, then take the mean of their weights.

Synchronous SGD sends 11 MB a worker and step for this model, which takes longer than the step. Here the same
11 MB are sent once a *round* of H steps. Replica r of R trains with its own batch on the r-th part of each
global batch, so each example is seen once an epoch, as in `sync`. At the end of a round one exchange
computes the mean of the weights, and the sums of loss and right answers.

The mean alone makes slow progress with many workers: R workers that each take H steps move about as far as
one of them, on R times the examples. `sync` makes up for that with a learning rate that is R times higher.
Here it is done in two ways:

- The move of a round, from one mean to the next, is an outer step with Nesterov's momentum 1 - 1/sqrt(R)
  (blockwise model-update filtering: K. Chen and Q. Huo, ICASSP 2016). In the long run it multiplies each move
  by sqrt(R). Up to `UNSCALED` workers this is enough, and the inner steps are the published recipe's: its
  rate, constant, and whole gradients.
- With more workers the inner learning rate is sqrt(R) times the published one. It warms up, falls along a
  cosine, and gradients are clipped at sqrt(R) times the length of `sync`, because over an R-th of the batch
  they have that much more noise. Clipped as in `sync`, they would be almost only noise.

docs/benchmark.md has the measured accuracy of each way. One worker has no outer step, and trains exactly as
`sync` does. The inner steps have no momentum, so nothing else has to be averaged. Each worker clips its own
gradient, so workers need not agree on anything within a round.

Between two rounds all workers have the same weights and momentum, so the chief's checkpoint serves all of
them.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from workload import sync, workers
from workload.errors import WorkloadError
from workload.loop import Between, Plan, Position, Report, State, go_on
from workload.published import build_model
from workload.scaling import choose

UNSCALED = 2
"""Up to so many workers the inner rate is not scaled for their number."""
ALONE = 10
"""Steps of one call if there is one worker only, which averages with nobody."""
PROBES = (1, 4, 4, 4)
"""Steps of the measured rounds. The first is not counted, because TensorFlow traces the functions in it."""


def train(plan: Plan, report: Report, start: State | None = None, between: Between = go_on) -> Any:
    """Train and return the model.

    The training can be interrupted between two rounds, once their length is known. A run that continues from
    that state with as many workers makes the same rounds over the same examples.

    Raises:
        StoppedError: `between` raises it to end the training.
        WorkloadError: The global batch cannot be shared evenly by the replicas, or the training diverged.
    """
    tf.keras.utils.set_random_seed(plan.seed)
    group = workers.of(plan.strategy, plan.ring)
    with group.scope():
        model = build_model()
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
            order = sync.epoch_order(plan, epoch + 1)
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
    """Seconds that one round took on this worker.

    Attributes:
        step: The mean of its steps.
        averaging: The averaging, with the wait for slower workers.
    """

    step: float
    averaging: float


@dataclass(slots=True)
class _Spent:
    """How the time of this worker was spent. The first round, in which TensorFlow traces, is left out."""

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
        """Return the mean seconds of a step and of an averaging; nothing for a training of one round."""
        if self.rounds < 2:
            return {}
        seconds = {"mean_step_seconds": self.computing / self.steps}
        if self.averaging:
            seconds["mean_exchange_seconds"] = self.averaging / (self.rounds - 1)
        return seconds


def _agree(plan: Plan, group: workers.Workers, probes: Sequence[_Times]) -> int:
    """Return the number of steps a round, the same on every worker, from what each has measured.

    The slowest worker's step counts, and the shortest averaging, which is that of the worker that came last
    and did not wait.
    """
    measured = tf.constant([min(p.step for p in probes), min(p.averaging for p in probes)], tf.float32)

    def share() -> Any:
        place = tf.one_hot(group.number(), group.size)
        return group.sums([place[:, None] * measured[None, :]])[0]

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
        # The weights at the round's beginning and the outer momentum are the same on every replica.
        self.momentum: list[Any] = []
        self._begun: list[Any] = []
        if self._replicas > 1:
            with group.scope():
                self._begun = [tf.Variable(v, trainable=False) for v in self._variables]
                self.momentum = [
                    tf.Variable(momentum[i] if momentum else tf.zeros_like(v), trainable=False)
                    for i, v in enumerate(self._variables)
                ]
        self._steps = self._steps_function(sync.gradient_of_rows(plan, model))
        self._average = self._average_function()

    def one(self, order: Any, begun: int, first: int, count: int) -> tuple[Any, _Times]:
        """Train a round of `count` steps from step `first` of the epoch that begins at step `begun` of all.

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
        # The last round ends at the mean itself, without a step ahead.
        ahead = tf.constant(0.0 if last else self._beta)
        total = self._group.mine(self._average(sums, ahead))[0].numpy()
        return total, _Times((trained - started) / count, time.monotonic() - trained)

    def _steps_function(self, gradient: Any) -> Any:
        plan, group, batch = self._plan, self._group, self._batch
        root = math.sqrt(self._replicas)
        scale = (root if self._replicas > UNSCALED else 1.0) * batch / sync.PUBLISHED_BATCH
        descent = sync.Descent(plan, scale, sync.CLIP * root)

        def steps(order: Any, begun: Any, first: Any, count: Any) -> Any:
            place = group.number() * batch

            def one_more(number: Any, total: Any) -> Any:
                start = number * plan.global_batch + place
                *gradients, counted = gradient(tf.gather(order, tf.range(start, start + batch)))
                factor = descent.factor(begun + number, gradients, batch)
                # In a replica's context this changes only the replica's own copy, so replicas differ until
                # the round ends.
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
                # Nesterov: the next round begins where the momentum points.
                variable.assign(begun.assign(mean + ahead * moved))
            return total

        return tf.function(lambda *args: group.run(average, *args), autograph=False)
