"""What the two training loops have in common: their arguments and what they report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workload.data import Data
from workload.errors import WorkloadError
from workload.result import Epoch

if TYPE_CHECKING:
    from workload.workers import Ring


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a training between two steps.

    Attributes:
        step: The steps done in all epochs.
        loss: The sum over the examples that the present epoch has seen.
        right: The right answers among these examples.
        seconds: Seconds of the present epoch.
    """

    step: int = 0
    loss: float = 0.0
    right: float = 0.0
    seconds: float = 0.0

    def epoch(self, steps: int, global_batch: int) -> Epoch:
        """Return the epoch whose last step was just done.

        Raises:
            WorkloadError: The training has diverged.
        """
        seen = steps * global_batch
        epoch = Epoch(self.step // steps, self.loss / seen, self.right / seen, self.seconds)
        check_finite(epoch)
        return epoch


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a training needs to continue; the same on every worker.

    Attributes:
        position: The progress.
        weights: The model's arrays.
        average_every: `local-sgd` only: steps a round.
        momentum: The optimizer's arrays: in `local-sgd` the outer step's momentum, one for each variable; in
            ResNet's training all that its optimizer keeps.
    """

    position: Position
    weights: list[Any]
    average_every: int | None = None
    momentum: list[Any] = field(default_factory=list)


Report = Callable[[Epoch], None]
"""Called on every worker at the end of every epoch."""
Between = Callable[[int, Callable[[], State]], None]
"""Called on every worker wherever a training can be interrupted, with the steps done and a function that
copies the state. An epoch's report comes before. It may raise `StoppedError`."""


Tell = Callable[[Mapping[str, float]], None]
"""Called on every worker with what the training has measured and chosen, by name."""


def go_on(step: int, capture: Callable[[], State]) -> None:
    """Never interrupt: a `Between`."""


def tell_nobody(facts: Mapping[str, float]) -> None:
    """Do nothing: a `Tell`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The arguments of a training loop.

    Attributes:
        strategy: TensorFlow's distribution strategy.
        data: The images and labels.
        epochs: The number of epochs.
        steps: The steps of an epoch.
        global_batch: Examples a step of all workers together.
        learning_rate: The learning rate for 64 examples a step, as published; `workload.sync` scales it for
            some profiles.
        seed: The seed of the first weights and of the data's order.
        parts: `sync` only: the number of parts in which each replica computes its batch.
        average_every: `local-sgd` only: steps a round; None means that the first steps are measured to choose
            it.
        tell: Called with what the training has measured and chosen.
        ring: `sync` and `local-sgd` only: what connects the workers instead of the strategy.
    """

    strategy: Any
    data: Data
    epochs: int
    steps: int
    global_batch: int
    learning_rate: float
    seed: int
    parts: int = 1
    average_every: int | None = None
    tell: Tell = tell_nobody
    ring: Ring | None = None


def check_finite(epoch: Epoch) -> None:
    """End a run that has diverged: no later epoch would bring it back.

    Raises:
        WorkloadError: The loss is not a finite number.
    """
    if not math.isfinite(epoch.loss):
        raise WorkloadError(f"the training diverged: the loss of epoch {epoch.epoch} is {epoch.loss}")
