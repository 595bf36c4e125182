"""What the two training loops have in common: their arguments and what they report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workload.data import Data
from workload.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of training, over the examples of all workers."""

    epoch: int
    """From 1."""
    loss: float
    accuracy: float
    seconds: float


Report = Callable[[Epoch], None]
"""Called on every worker at the end of every epoch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run of a loop."""

    strategy: Any
    data: Data
    epochs: int
    steps: int
    """An epoch."""
    global_batch: int
    """Examples a step, of all workers."""
    learning_rate: float
    seed: int
    parts: int = 1
    """`sync` only: each replica computes its batch in so many parts, which are added."""


def check_finite(epoch: Epoch) -> None:
    """End a run that has diverged: no later epoch would bring it back.

    Raises:
        WorkloadError: the loss is no finite number.
    """
    if not math.isfinite(epoch.loss):
        raise WorkloadError(f"the training diverged: the loss of epoch {epoch.epoch} is {epoch.loss}")
