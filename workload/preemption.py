"""Handles SIGTERM: all tasks of a step end together, with the training saved.

A machine that is about to be taken away, a requeue and a time limit all reach a training as SIGTERM: in one
task or in all, at any moment. Only the chief decides, because only the chief saves:

1. A task that gets the signal leaves a note and continues.
2. The chief sees the note or gets the signal itself. It saves at the next point between two steps, and leaves
   the note `over`.
3. The other tasks end, wherever they are. The chief ends last.

This takes little more than one call of the training loop. The tasks need not agree on a step: wherever the
chief saves, every worker has the same weights.

The signal is blocked in every thread, and one thread waits for it. Python's handlers would run only when
TensorFlow returns to the main thread. A handler could also interrupt a save, and there would be none yet
during the long start of a task.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Literal

from workload.errors import WorkloadError
from workload.rendezvous import Rendezvous
from workload.waiting import wait_at_most

STATUS = 75
"""The chief's exit status when the job should be queued again: EX_TEMPFAIL, "try again later"."""
FREE_RESTARTS = 3
"""How often a job may be queued again without having saved anything new. Otherwise a job whose time limit is
too short for a single save would repeat for ever."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 25.0
"""Seconds after which a task that was asked to end is ended. Slurm kills it after 30 (KillWait)."""
LEAVE_SECONDS = 5.0
"""How long the chief waits for the other tasks to end."""
LOST_SECONDS = 10.0
"""How long a task that has lost a peer waits for the chief's note: TensorFlow reports the loss to the tasks
seconds apart."""

STOP, OVER, LEFT = "stop", "over", "left"


def block() -> set[signal.Signals | int]:
    """Block SIGTERM in this thread and those it will start. Return the signals that were blocked before."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


class Preemption:
    """Receives SIGTERM as long as its `with` block lasts.

    Args:
        restarts: How often the job was queued again.

    Attributes:
        saved: Whether this start of the job has saved a checkpoint.
    """

    def __init__(self, rendezvous: Rendezvous, restarts: int) -> None:
        self._rendezvous = rendezvous
        self._chief = rendezvous.step.chief
        self._restarts = restarts
        self._stage: Literal["starting", "training", "finishing", "over"] = "starting"
        self._lock = threading.RLock()
        self._asked_at: float | None = None
        self._signalled = False
        self.saved = False

    def __enter__(self) -> Preemption:
        self._before = block()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enter("over")
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def training(self) -> None:
        """Note that the training has begun: now the chief's main thread ends it, between two steps."""
        self._enter("training")

    def finishing(self) -> None:
        """Note that all steps are done. The rest takes seconds and continues in spite of a signal."""
        self._enter("finishing")

    def asked(self) -> bool:
        """Whether any task has received the signal, as far as this one knows."""
        return self._asked_at is not None

    def look(self) -> None:
        """Read the others' notes now."""
        with self._lock, contextlib.suppress(FileNotFoundError):  # the folder is gone: the chief has left
            if self._asked_at is None and self._rendezvous.any(STOP):
                self._asked_at = time.monotonic()
            if not self._chief and self._stage != "finishing" and self._rendezvous.any(OVER):
                self._leave_behind()

    def leave(self) -> int:
        """Prepare the end of this task, and return its exit status. The chief waits for the others."""
        with self._lock:
            self._stage = "over"
            if not self._chief:
                return self._follow()
            self._rendezvous.publish(OVER, {})
            with contextlib.suppress(WorkloadError):  # Slurm ends tasks that are dead or stuck
                self._rendezvous.collect(LEFT, range(1, self._rendezvous.step.size), LEAVE_SECONDS, LEFT)
            self._rendezvous.close()
            if self.saved or self._restarts < FREE_RESTARTS:
                return STATUS
            print(
                f"workload: this job was queued again {self._restarts} times, and this time nothing could be "
                "saved: it ends here. Is its time limit long enough?",
                file=sys.stderr,
                flush=True,
            )
            return 1

    def _follow(self) -> int:
        """Wait for the chief, because srun ends all tasks as soon as one fails. Return the exit status."""
        with contextlib.suppress(FileNotFoundError):
            if not wait_at_most(lambda: self._rendezvous.any(OVER), LOST_SECONDS):
                return STATUS
            self._rendezvous.publish(LEFT, {})
        return 0

    def _enter(self, stage: Literal["training", "finishing", "over"]) -> None:
        with self._lock:  # a thread that is ending this task never releases it
            self._stage = stage

    def _watch(self) -> None:
        while True:
            received = signal.sigtimedwait({signal.SIGTERM}, POLL_SECONDS) is not None
            with self._lock:
                if self._stage == "over":
                    return
                if received:
                    self._receive()
                if self._stage == "finishing":
                    continue
                self.look()
                if self._asked_at is None:
                    continue
                late = time.monotonic() - self._asked_at > GRACE_SECONDS
                if self._chief and (self._stage == "starting" or late):
                    end_at_once(self.leave())  # nothing is trained yet, or the training does not stop
                elif late:
                    self._leave_behind()

    def _receive(self) -> None:
        if self._signalled:
            return
        self._signalled = True
        does = "finishing" if self._stage == "finishing" else "stopping"
        print(f"{self._rendezvous.step.node}: SIGTERM received while {self._stage}: {does}", flush=True)
        if self._stage != "finishing":
            self._asked_at = self._asked_at or time.monotonic()
            with contextlib.suppress(FileNotFoundError):
                self._rendezvous.publish(STOP, {})

    def _leave_behind(self) -> None:
        """End a task that is not the chief, wherever it is."""
        self._stage = "over"
        with contextlib.suppress(OSError):
            self._rendezvous.publish(LEFT, {})
        end_at_once(0)


def end_at_once(status: int) -> None:
    """End this process without its threads. TensorFlow's may go on 10-30 s after the last step."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
