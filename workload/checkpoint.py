"""A run's checkpoint: one file beside the result, written by the chief and read by every worker.

Wherever a training can be interrupted, every worker has the same weights, so only the chief saves its own:
regularly, and when the training is asked to end. The file is replaced atomically: if a save is killed, the
last good file stays. A checkpoint belongs to one job and its settings, and no other job continues from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workload import files
from workload.errors import StoppedError, WorkloadError
from workload.loop import Position, State
from workload.result import Epoch

if TYPE_CHECKING:
    from workload.preemption import Preemption
    from workload.progress import Phases, Progress

FOLDER = ".checkpoint"
_META = "meta"
_MOMENTUM = "momentum-"
SHARE = 0.01
"""The share of the training's time that regular saves may take, even on slow storage."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a training between two steps, and what its result record needs of the time until then.

    Attributes:
        state: The state.
        history: The epochs that are complete.
        seconds_total: Seconds of all starts of the job until now.
        start_latency: `Job.start_latency` of the job's first start that saved a checkpoint.
    """

    state: State
    history: tuple[Epoch, ...]
    seconds_total: float = 0.0
    start_latency: float | None = None


class Store:
    """The place of one run's checkpoint.

    Args:
        result: The run's result file; the checkpoint lies in a folder beside it.
        identity: The job and its settings as JSON values; only a checkpoint with the same ones is used.
    """

    def __init__(self, result: Path, identity: Mapping[str, Any]) -> None:
        self.path = result.parent / FOLDER / f"{result.stem}.npz"
        self._identity = dict(identity)

    def load(self, say: Callable[[str], None] = print) -> Checkpoint | None:
        """Return this run's checkpoint; None if there is none that it may use. `say` is called with why."""
        try:
            return self.read()
        except FileNotFoundError:
            say("there is no checkpoint yet: starting anew")
        except WorkloadError as error:
            say(f"{error}: starting anew")
        return None

    def read(self) -> Checkpoint:
        """Return this run's checkpoint.

        Raises:
            FileNotFoundError: There is none.
            WorkloadError: It is damaged, or of another run.
        """
        try:
            identity, checkpoint = _read(self.path)
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged zip ends in many kinds of error; all mean the same
            raise WorkloadError(f"the checkpoint {self.path} is damaged ({error})") from error
        keys = sorted(
            k for k in identity.keys() | self._identity.keys() if identity.get(k) != self._identity.get(k)
        )
        if keys:
            differ = ", ".join(f"{k} {identity.get(k)}, now {self._identity.get(k)}" for k in keys)
            raise WorkloadError(f"the checkpoint {self.path} is of another run ({differ})")
        return checkpoint

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint.

        Raises:
            OSError: The file cannot be written, for example on a full disk; the last one is still there.
        """
        with files.replacing(self.path) as file:
            np.savez(file, **_arrays(checkpoint, self._identity))

    def remove(self) -> None:
        """Remove the checkpoint, and the file that a killed save has left."""
        for path in (self.path, *self.path.parent.glob(f".{self.path.name}.*")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder may hold another run's checkpoint
            self.path.parent.rmdir()


def _arrays(checkpoint: Checkpoint, identity: Mapping[str, Any]) -> dict[str, Any]:
    meta = {
        "identity": identity,
        "position": dataclasses.asdict(checkpoint.state.position),
        "average_every": checkpoint.state.average_every,
        "history": [dataclasses.asdict(epoch) for epoch in checkpoint.history],
        "seconds_total": checkpoint.seconds_total,
        "start_latency": checkpoint.start_latency,
    }
    # JSON keeps every bit of a float. Python's JSON keeps NaN, too, which a diverged training may have.
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    momentum = {f"{_MOMENTUM}{name}": array for name, array in numbered(checkpoint.state.momentum).items()}
    return {_META: text} | numbered(checkpoint.state.weights) | momentum


def save_weights(folder: Path, rank: int, weights: Sequence[Any]) -> None:
    """Write the weights that one worker ended with, as `weights-<rank>.npz`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"weights-{rank}.npz").open("wb") as file:
        np.savez(file, **numbered(weights))


def numbered(arrays: Sequence[Any]) -> dict[str, Any]:
    """Return the arrays for an `.npz` file: by names that sort in the arrays' order."""
    return {f"{index:05d}": array for index, array in enumerate(arrays)}


def _read(path: Path) -> tuple[dict[str, Any], Checkpoint]:
    with np.load(path) as file:  # each array is checked against the zip's CRC
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays.pop(_META).tobytes())
    momentum = [arrays.pop(name) for name in sorted(arrays) if name.startswith(_MOMENTUM)]
    return meta["identity"], Checkpoint(
        state=State(
            Position(**meta["position"]),
            [arrays[name] for name in sorted(arrays)],
            meta["average_every"],
            momentum,
        ),
        history=tuple(Epoch(**epoch) for epoch in meta["history"]),
        seconds_total=meta["seconds_total"],
        start_latency=meta["start_latency"],
    )


class Saver:
    """The chief's `Between`.

    Args:
        every: Seconds from one checkpoint to the next.
        steps: The steps of the whole training.
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
            StoppedError: The training must end here. A training that has done its last step is not stopped.
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
