"""The training of ResNet-50: `python3 -m workload.resnet.train …`, one process a node, alone or by TF_CONFIG.

The entry point of the container starts it on every node. Each process uses all GPUs of its node. NCCL
exchanges the gradients, or gRPC if there is no GPU. SIGTERM ends the training with a checkpoint, from which
the job's next attempt continues.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload import files, runtime
from workload.errors import StoppedError, WorkloadError
from workload.preemption import block, end_at_once
from workload.program import PROGRESS_LINES, VALUES
from workload.resnet.options import Options, from_environment

if TYPE_CHECKING:
    from workload.resnet.training import Training
    from workload.result import Epoch

STOPPED = 128 + signal.SIGTERM
PACK_BYTES = 32 << 20
"""Gradients are sent in pieces of this size, so that the first are sent while others are computed."""


class Asked:
    """Receives SIGTERM in its own thread, and ends the process if there is nothing to save yet.

    TensorFlow replaces Python's signal handler. So the signal is blocked in every thread, and this thread
    waits for it.
    """

    def __init__(self) -> None:
        self._asked = False
        self.training = False
        threading.Thread(target=self._wait, daemon=True).start()

    def __call__(self) -> bool:
        return self._asked

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self._asked = True
        if not self.training:
            end_at_once(STOPPED)
        print("resnet: SIGTERM received: saving", flush=True)


class Progress:
    """The chief's output: lines of the log, JSON lines for programs, and TensorBoard's logs.

    Args:
        options: The options.
        file: The file with the JSON lines.
        images: The images of an epoch.
        history: The epochs that earlier starts have done.
    """

    def __init__(self, options: Options, file: Path, images: int, history: Sequence[Epoch]) -> None:
        from workload.progress import TensorBoardLogs

        self._options, self._file = options, file
        self._logs = TensorBoardLogs(options.folder / VALUES, images, resumed=bool(history))
        self.last = history[-1] if history else None
        file.parent.mkdir(parents=True, exist_ok=True)
        # An earlier start may have trained on after its last checkpoint.
        file.write_text("".join(map(self._line, history)), encoding="utf-8")

    def report(self, epoch: Epoch) -> None:
        """Report an epoch."""
        self.last = epoch
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(self._line(epoch))
        print(
            f"Epoch {epoch.epoch}/{self._options.epochs} - {epoch.seconds:.1f}s "
            f"- loss: {epoch.loss:.4f} - accuracy: {epoch.accuracy:.4f}",
            flush=True,
        )
        self._logs.report(epoch)

    def _line(self, epoch: Epoch) -> str:
        values = {"loss": epoch.loss, "accuracy": epoch.accuracy, "seconds": round(epoch.seconds, 3)}
        return f"{json.dumps({'epoch': epoch.epoch, 'epochs': self._options.epochs, **values})}\n"

    def end(self, test_accuracy: float | None) -> None:
        if test_accuracy is not None:
            self._logs.end(test_accuracy, self._options.epochs)


def main() -> int:
    """Train, and return the exit status."""
    options = from_environment()
    runtime.set_variables("1")
    asked = Asked()
    try:
        return _run(options, asked, os.environ)
    except StoppedError as stop:
        print(f"resnet: {stop}", flush=True)
        return STOPPED
    except WorkloadError as error:
        print(f"resnet: {error}", file=sys.stderr, flush=True)
    except Exception as error:
        traceback.print_exc()
        print(f"resnet: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
    return 1


def _run(options: Options, asked: Asked, env: Mapping[str, str]) -> int:
    began = time.monotonic()
    with runtime.without_collection():
        import tensorflow as tf

        from workload.resnet import images
        from workload.resnet.training import Training, Watch

    dataset = images.find(options)
    gpus = runtime.grow_memory()
    implementation = tf.distribute.experimental.CommunicationImplementation
    communication = implementation.NCCL if gpus else implementation.AUTO
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=PACK_BYTES if gpus else 0, implementation=communication
        )
    )
    chief = env.get("RANK", "0") == "0"
    progress: Progress | None = None

    def report(epoch: Epoch) -> None:
        if progress is not None:
            progress.report(epoch)

    def say(line: str) -> None:
        if chief:
            print(line, flush=True)

    mixed = options.precision == "mixed" or (options.precision == "auto" and bool(gpus))
    training = Training(options, strategy, dataset, chief, Watch(report, say, asked), mixed)
    if chief:
        file = Path(env.get("SLURM_STACKS_PROGRESS") or options.folder / PROGRESS_LINES)
        each = training.steps * training.global_batch
        progress = Progress(options, file, each, training.history)
        precision = "mixed precision" if mixed else "float32"
        print(
            f"Train {options.network} on {dataset.name} images, {precision}, "
            f"steps an epoch: {training.steps}, global batch: {training.global_batch}",
            flush=True,
        )
    asked.training = True
    started = time.monotonic()
    training.run()
    seconds = time.monotonic() - started
    accuracy = training.held_out_accuracy()
    if progress is not None:
        progress.end(accuracy)
        values = _values(training, progress, accuracy, mixed, len(gpus))
        values |= {"seconds_train": round(seconds, 3), "seconds_start": round(started - began, 3)}
        values |= {f"{name}_version": version for name, version in runtime.gpu_versions().items()}
        values["tensorflow_version"] = tf.__version__
        files.write_json(Path(env.get("SLURM_STACKS_RESULT") or options.folder / VALUES), values)
    return 0


def _values(
    training: Training, progress: Progress, accuracy: float | None, mixed: bool, gpus: int
) -> dict[str, Any]:
    """Return the values for the result record; None for those that a training without an epoch left lacks."""
    options, last = training.options, progress.last
    rate = training.speed.rate() if training.speed.first else None
    replicas = int(training.strategy.num_replicas_in_sync)
    return {
        "images_per_second": None if rate is None else round(rate, 1),
        "images_per_second_each": None if rate is None else round(rate / replicas, 1),
        "loss": None if last is None else last.loss,
        "accuracy": None if last is None else last.accuracy,
        "test_accuracy": accuracy,
        "network": options.network,
        "data": training.images.name,
        "precision": "mixed" if mixed else "float32",
        "communication": "NCCL" if gpus else "gRPC",
        "workers": replicas,
        "batch": options.batch,
        "global_batch": training.global_batch,
        "image_size": options.image_size,
        "epochs": options.epochs,
        "steps": training.steps,
        "resumed_at_step": training.resumed,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
    }


if __name__ == "__main__":
    block()  # before any thread, and for as long as the process lives
    end_at_once(main())
