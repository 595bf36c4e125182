"""Saves a training: regularly, and when it is asked to end."""

from __future__ import annotations

import time
from collections.abc import Callable

from workload.checkpoint import Checkpoint, Store
from workload.errors import StoppedError
from workload.loop import State
from workload.preemption import Preemption
from workload.record import Phases, Progress

SHARE = 0.01
"""The share of the training's time that regular saves may take, even on slow storage."""


class Saver:
    """The chief's `Between`.

    Args:
        every: seconds from one checkpoint to the next.
        steps: the steps of the whole training.
        start_latency: `Job.start_latency` of the job's first start that saved a checkpoint.
    """

    def __init__(
        self,
        store: Store,
        preemption: Preemption,
        progress: Progress,
        phases: Phases,
        *,
        every: float,
        steps: int,
        start_latency: float | None,
    ) -> None:
        self._store, self._preemption = store, preemption
        self._progress, self._phases = progress, phases
        self._every, self._steps, self._start_latency = every, steps, start_latency
        self._due = time.monotonic() + every

    def between(self, step: int, capture: Callable[[], State]) -> None:
        """Save if it is time to, or if the training is asked to end.

        Raises:
            StoppedError: the training must end here. A training that has done its last step is not stopped.
        """
        asked = self._preemption.asked()
        if not asked and time.monotonic() < self._due:
            return
        started = time.monotonic()
        saved = self._save(capture())
        took = time.monotonic() - started
        self._due = time.monotonic() + max(self._every, took / SHARE)
        if asked and step < self._steps:
            what = f"saved in {took:.1f} s" if saved else "not saved"
            raise StoppedError(f"stopped after step {step} of {self._steps}, {what}")

    def _save(self, state: State) -> bool:
        checkpoint = Checkpoint(
            state=state,
            history=tuple(self._progress.epochs),
            seconds_total=self._phases.total(),
            start_latency=self._start_latency,
        )
        try:
            self._store.save(checkpoint)
        except OSError as error:  # the training must not end because its checkpoint fails
            print(f"the checkpoint could not be saved: {error}", flush=True)
            return False
        self._preemption.saved = True
        return True
