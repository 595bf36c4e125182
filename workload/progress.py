"""The progress of a run and its times: log lines, progress.json, TensorBoard's logs, the result record."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload import files, result
from workload.options import Options
from workload.result import Epoch
from workload.slurm import Job, Step

if TYPE_CHECKING:
    from workload.loop import Report
TENSORBOARD = "tensorboard"


class Progress:
    """Prints lines to the log, and writes progress.json beside the result."""

    def __init__(self, options: Options, chief: bool) -> None:
        self.options, self.chief = options, chief
        self.path = options.result.with_name("progress.json")
        self.epochs: list[Epoch] = []
        self.average_every: int | None = None
        self.facts: dict[str, float] = {}

    def resume(self, epochs: Iterable[Epoch], step: int, steps: int) -> None:
        """Take over the epochs of an earlier start of the job.

        Args:
            epochs: The epochs that it finished.
            step: The number of its steps, over all epochs.
            steps: The number of steps of an epoch.
        """
        self.epochs = list(epochs)
        if self.chief:
            epoch, step = divmod(step, steps)
            print(f"going on from the checkpoint: epoch {epoch + 1}, step {step} of {steps}", flush=True)

    def tell(self, facts: Mapping[str, float]) -> None:
        """Take what the training has measured and chosen."""
        self.facts |= facts
        if "average_every" not in facts:
            return
        self.average_every = int(facts["average_every"])
        if self.chief:
            every = "every step" if self.average_every == 1 else f"every {self.average_every} steps"
            because = (
                f": a step takes {1000 * facts['step_seconds']:.0f} ms, "
                f"an averaging {1000 * facts['averaging_seconds']:.0f} ms"
                if "step_seconds" in facts
                else ""
            )
            print(f"the workers average their weights {every}{because}", flush=True)
        self.state("training")

    def report(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        # Every worker has the same numbers. The published program shows it by a line of each.
        if self.chief or self.options.profile == "published":
            print(
                f"Epoch {epoch.epoch}/{self.options.epochs} - {epoch.seconds:.1f}s "
                f"- loss: {epoch.loss:.4f} - accuracy: {epoch.accuracy:.4f}",
                flush=True,
            )
        self.state("training")

    def state(self, state: str) -> None:
        """Write the state: starting | training | done | stopped (will be queued again) | failed."""
        last = self.epochs[-1] if self.epochs else None
        if self.chief:
            files.write_json(
                self.path,
                {
                    "state": state,
                    "epoch": last.epoch if last else 0,
                    "epochs": self.options.epochs,
                    "loss": last.loss if last else None,
                    "accuracy": last.accuracy if last else None,
                    "seconds": round(sum(e.seconds for e in self.epochs), 3),
                    "average_every": self.average_every,
                },
            )


class Phases:
    """The seconds of each phase of a run, by name, from the monotonic clock."""

    def __init__(self) -> None:
        self.started = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}
        self._earlier = 0.0

    def resume(self, seconds: float) -> None:
        """Add the seconds that earlier starts of the job took until the checkpoint."""
        self._earlier = seconds

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now

    def total(self) -> float:
        """Return the seconds of all starts of the job."""
        return self._earlier + time.monotonic() - self.started


def make_record(
    options: Options, step: Step, job: Job, progress: Progress, phases: Phases, global_batch: int, steps: int
) -> dict[str, Any]:
    """Return the record without devices, data, test accuracy and cores, which the caller adds."""
    total = phases.total()
    # The phase `train` is longer: TensorFlow is set up before the first epoch, and a worker of
    # `published` may wait after the last one.
    training = sum(epoch.seconds for epoch in progress.epochs)
    last = progress.epochs[-1]
    step_seconds = progress.facts.get("mean_step_seconds")
    if step_seconds is None and step.size == 1:
        # One worker exchanges nothing. With several, only a ring measures steps and exchanges apart.
        step_seconds = training / (options.epochs * steps)
    return {
        "apiVersion": result.API_VERSION,
        "stack": job.stack,
        "job_id": job.job_id,
        "partition": job.partition,
        **({} if job.pool is None else {"pool": job.pool}),
        "machine": job.machine,
        "nodes": step.node_count,
        "workers": step.size,
        "gpus_per_node": options.gpus_per_node,
        "profile": options.profile,
        "epochs": options.epochs,
        "global_batch": global_batch,
        "seconds_total": round(total, 3),
        "seconds_train": round(training, 3),
        "images_per_second": round(options.epochs * steps * global_batch / training, 1),
        "loss": last.loss,
        "accuracy": last.accuracy,
        "history": [
            {"epoch": e.epoch, "loss": e.loss, "accuracy": e.accuracy, "seconds": round(e.seconds, 3)}
            for e in progress.epochs
        ],
        "start_latency_seconds": None if job.start_latency is None else round(job.start_latency, 3),
        "restarts": job.restarts,
        "digest": job.digest,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("tensorflow", "tf_keras", "numpy")},
        },
        "cost_usd": None
        if job.price_hour is None
        else round(job.price_hour * step.node_count * total / 3600, 6),
        "seed": options.seed,
        "learning_rate": options.learning_rate,
        "average_every": progress.average_every,
        "step_seconds": _rounded(step_seconds),
        "exchange_seconds": _rounded(progress.facts.get("mean_exchange_seconds")),
        "phases": {name: round(seconds, 3) for name, seconds in phases.seconds.items()},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


class TensorBoardLogs:
    """The event file of one start of a training.

    Args:
        result: The path of the result record; the logs are written beside it.
        images: The number of images of an epoch.
        resumed: Whether an earlier start's files stay. TensorBoard joins them to one curve.
    """

    def __init__(self, result: Path, images: int, *, resumed: bool) -> None:
        folder = result.with_name(TENSORBOARD)
        if not resumed:
            shutil.rmtree(folder, ignore_errors=True)
        import tensorflow as tf

        self._images = images
        self._tf = tf
        self._writer = tf.summary.create_file_writer(str(folder))

    def report(self, epoch: Epoch) -> None:
        """Write an epoch's values at once, for users who watch the training."""
        values = {"loss": epoch.loss, "accuracy": epoch.accuracy}
        if epoch.seconds > 0:
            values["images_per_second"] = self._images / epoch.seconds
        self._write(values, epoch.epoch)

    def beside(self, report: Report) -> Report:
        """Return a report that also writes the epoch here."""

        def both(epoch: Epoch) -> None:
            report(epoch)
            self.report(epoch)

        return both

    def end(self, test_accuracy: float, epoch: int) -> None:
        """Write the accuracy on held-out data, and close the file."""
        self._write({"test_accuracy": test_accuracy}, epoch)
        self._writer.close()

    def _write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            # `tf.summary.scalar` needs the package `tensorboard`; this is the operation of TensorFlow itself.
            self._tf.raw_ops.WriteScalarSummary(
                writer=self._writer._resource,
                step=self._tf.constant(step, self._tf.int64),
                tag=name,
                value=float(value),
            )
        self._writer.flush()
