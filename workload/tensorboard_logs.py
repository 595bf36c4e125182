"""Writes a training's loss and accuracy for TensorBoard, to the folder `tensorboard` beside its result.

TensorFlow's own operations write the event files. The package `tensorboard`, which reads them, is not needed
in the training environment.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import tensorflow as tf

from workload.loop import Report
from workload.result import Epoch

FOLDER = "tensorboard"


class TensorBoardLogs:
    """The event file of one start of a training.

    Args:
        result: The path of the result record; the logs are written beside it.
        images: The number of images of an epoch.
        resumed: Whether an earlier start's files stay. TensorBoard joins them to one curve.
    """

    def __init__(self, result: Path, images: int, *, resumed: bool) -> None:
        folder = result.with_name(FOLDER)
        if not resumed:
            shutil.rmtree(folder, ignore_errors=True)
        self._images = images
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
            tf.raw_ops.WriteScalarSummary(
                writer=self._writer._resource, step=tf.constant(step, tf.int64), tag=name, value=float(value)
            )
        self._writer.flush()
