"""Predicts the training time on N workers from measurements on few.

Standard library only, because the report uses it on the engineer's machine.

The model: a worker computes `every` steps, then all workers exchange the weights once and do not compute
meanwhile. The exchange is a ring all-reduce (`workload/workers.py`): each of N workers sends 2·(N-1)/N of the
payload (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69, 2009). The model leaves out the latency of 2·(N-1) messages, which is small
beside megabytes, and differences between machines or networks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.05
"""The part of a round's time that the exchange should take."""
FEWEST, MOST = 4, 32
"""The fewest and the most steps of a round."""
ROUNDS_AN_EPOCH = 4
"""The fewest rounds of an epoch, if it has enough steps. The momentum needs several rounds to take effect."""


def choose(step: float, exchange: float, steps: int) -> int:
    """Return the number of steps of a round of `local-sgd`.

    Args:
        step: Seconds of one step.
        exchange: Seconds of one exchange, without the wait for slower workers.
        steps: The steps of an epoch.
    """
    needed = math.ceil(exchange * (1 - SHARE) / (SHARE * step))
    return max(1, min(max(needed, FEWEST), MOST, steps // ROUNDS_AN_EPOCH))


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured times of a run on several workers.

    Attributes:
        step: Seconds in which a worker computes a step with its own batch.
        exchange: Seconds of one exchange, with the wait for the slowest worker.
        workers: The number of workers, at least 2.
        every: Steps between two exchanges.
    """

    step: float
    exchange: float
    workers: int
    every: int

    def exchange_of(self, workers: int) -> float:
        """Return the seconds of an exchange among `workers` workers on the same network."""
        return self.exchange * _sent(workers) / _sent(self.workers)

    def step_of(self, workers: int) -> float:
        """Return the seconds of a step on `workers` workers, with its share of the exchange."""
        return self.step + (self.exchange_of(workers) / self.every if workers > 1 else 0.0)

    def speed_up(self, workers: int, alone: float | None = None) -> float:
        """Return how many times as fast as one worker `workers` workers train an example.

        Args:
            workers: The number of workers.
            alone: Seconds of a step of a single worker. `None` means the same as `step`.
        """
        return workers * (self.step if alone is None else alone) / self.step_of(workers)


def _sent(workers: int) -> float:
    """Return the part of the payload that each worker sends in a ring."""
    return 2 * (workers - 1) / workers
