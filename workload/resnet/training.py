"""The training loop: calls of several steps, one all-reduce a step, checkpoints between calls."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from workload import files
from workload.errors import StoppedError, WorkloadError
from workload.loop import check_finite
from workload.resnet import images as data
from workload.resnet import network
from workload.resnet.descent import PUBLISHED_BATCH, Descent, Schedule, loss
from workload.resnet.options import Options
from workload.result import Epoch

CHECKPOINTS = "checkpoint"
SETTINGS = "settings.json"
CALL_STEPS = 10
"""The steps of one call. A training that is asked to end ends after a call."""
SAY_SECONDS = 30.0
KEPT = 2


@dataclass(slots=True)
class Speed:
    """Images a second after the first call, which makes TensorFlow's graph and fills the buffers."""

    images: int = 0
    seconds: float = 0.0
    first: tuple[int, float] | None = None

    def add(self, images: int, seconds: float) -> None:
        if self.first is None:
            self.first = (images, seconds)
        else:
            self.images += images
            self.seconds += seconds

    def rate(self) -> float:
        images, seconds = (self.images, self.seconds) if self.images else (self.first or (0, 1.0))
        return images / seconds


@dataclass(frozen=True, slots=True)
class Watch:
    """Callbacks of a training.

    Attributes:
        epoch: Called at the end of every epoch, on every worker.
        say: Called with lines for the log, on every worker.
        asked: Returns whether this worker was asked to end.
    """

    epoch: Callable[[Epoch], None]
    say: Callable[[str], None]
    asked: Callable[[], bool]


@dataclass(slots=True)
class Training:
    """One start of a training, on one worker.

    Attributes:
        options: The options.
        strategy: TensorFlow's distribution strategy.
        images: The images to train on.
        chief: Whether this worker's checkpoints are kept.
        watch: The callbacks.
        mixed: Whether layers compute in float16.
        speed: The images a second of this start.
        resumed: The step of the checkpoint from which this start continues; 0 means from the beginning.
    """

    options: Options
    strategy: Any
    images: data.Images
    chief: bool
    watch: Watch
    mixed: bool = False
    speed: Speed = field(default_factory=Speed)
    resumed: int = 0
    steps: int = field(init=False)
    model: Any = field(init=False)
    _descent: Descent = field(init=False)
    _sums: Any = field(init=False)
    _manager: Any = field(init=False)
    _temporary: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        options = self.options
        there = self.images.counts["train"] // self.global_batch
        if there == 0:
            raise WorkloadError(
                f"a batch of all workers takes {self.global_batch} of the images, and there are only "
                f"{self.images.counts['train']}: use fewer nodes or a smaller --batch"
            )
        self.steps = min(there, options.steps or there)
        policy = "mixed_float16" if self.mixed else "float32"
        tf.keras.mixed_precision.set_global_policy(policy)
        tf.keras.utils.set_random_seed(options.seed)
        peak = options.learning_rate * self.global_batch / PUBLISHED_BATCH
        schedule = Schedule(peak, self.steps * options.epochs, round(self.steps * options.warmup_epochs))
        with self.strategy.scope():
            self.model = network.build(options.network, self.images.classes, options.image_size)
            self._descent = Descent(self.model.trainable_variables, schedule, scaled=self.mixed)
            # The sums of the present epoch: loss, right answers, seconds.
            self._sums = tf.Variable(tf.zeros([3], tf.float64), trainable=False)
        self._keep()

    @property
    def global_batch(self) -> int:
        """Return the images of a step on all workers."""
        return self.options.batch * int(self.strategy.num_replicas_in_sync)

    def _keep(self) -> None:
        """Load the chief's checkpoint on all workers. Only the chief's checkpoints are kept."""
        folder = self.options.folder / CHECKPOINTS
        settings = {
            **{name: getattr(self.options, name) for name in ("network", "epochs", "image_size", "seed")},
            **{"classes": self.images.classes, "steps": self.steps, "global_batch": self.global_batch},
        }
        kept = tf.train.Checkpoint(
            model=self.model,
            momentum=self._descent.momentum,
            step=self._descent.step,
            scale=self._descent.scale,
            good=self._descent.good,
            sums=self._sums,
        )
        if (latest := tf.train.latest_checkpoint(str(folder))) is not None:
            if (there := json.loads((folder / SETTINGS).read_text(encoding="utf-8"))) != settings:
                raise WorkloadError(
                    f"the checkpoint in {folder} is of another training ({there}, and now {settings}): "
                    "remove the folder or take the same options"
                )
            kept.restore(latest).assert_consumed()
            self.resumed = int(self._descent.step.numpy())
            self.watch.say(f"going on from step {self.resumed} of {self.steps * self.options.epochs}")
        if self.chief:
            files.write_json(folder / SETTINGS, settings)
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="slurm-stacks-checkpoint-")
            folder = Path(self._temporary.name)
        self._manager = tf.train.CheckpointManager(kept, str(folder), max_to_keep=KEPT)

    def run(self) -> None:
        """Train to the end.

        Raises:
            StoppedError: A worker was asked to end; the training is saved.
            WorkloadError: The training has diverged.
        """
        steps = self._steps_function()
        total, at = self.steps * self.options.epochs, self.resumed
        spoken = time.monotonic()
        iterator = None
        while at < total:
            epoch, within = divmod(at, self.steps)
            if iterator is None or within == 0:
                iterator = self._iterator(epoch, within)
            began = time.monotonic()
            count = self._count(at, within)
            summed = steps(iterator, tf.constant(count), tf.constant(float(self.watch.asked())))
            lost, right, asked = (float(value) for value in summed)
            took = time.monotonic() - began
            at += count
            self.speed.add(count * self.global_batch, took)
            self._sums.assign_add([lost, right, took])
            stop = asked > 0 and at < total
            if time.monotonic() - spoken > SAY_SECONDS:
                mean = lost / count / self.global_batch
                self.watch.say(f"step {at} of {total}: loss {mean:.4f}, images/s: {self.speed.rate():.0f}")
                spoken = time.monotonic()
            if at % self.steps == 0:
                self._end_epoch(at)
            if stop or at % self.steps == 0 or self._due(at):
                self._manager.save(checkpoint_number=at)
            if stop:
                raise StoppedError(f"stopped after step {at} of {total}, saved")

    def _count(self, at: int, within: int) -> int:
        """Return the steps of the next call, which ends with the epoch and at a checkpoint at the latest."""
        every = self.options.checkpoint_steps
        until = every - at % every if every else CALL_STEPS
        return min(CALL_STEPS, self.steps - within, until)

    def _due(self, at: int) -> bool:
        return self.options.checkpoint_steps > 0 and at % self.options.checkpoint_steps == 0

    def _iterator(self, epoch: int, within: int) -> Any:
        def of_worker(context: Any) -> Any:
            local = context.num_replicas_in_sync // context.num_input_pipelines
            skip = within * self.options.batch * local
            return data.training(self.images, self.options, context, epoch, skip)

        return iter(self.strategy.distribute_datasets_from_function(of_worker))

    def _end_epoch(self, at: int) -> None:
        seen = self.steps * self.global_batch
        lost, right, seconds = (float(value) for value in self._sums.numpy())
        epoch = Epoch(at // self.steps, lost / seen, right / seen, seconds)
        self._sums.assign(tf.zeros([3], tf.float64))
        check_finite(epoch)
        self.watch.epoch(epoch)

    def _steps_function(self) -> Any:
        """Return `f(iterator, count, asked)`, which trains `count` steps.

        It returns three sums: loss, right answers, and `asked` of all workers.
        """
        strategy, model, descent = self.strategy, self.model, self._descent
        replicas, batch = strategy.num_replicas_in_sync, self.options.batch
        variables = model.trainable_variables

        def step(pixels: Any, labels: Any, asked: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(pixels, training=True)
                lost = tf.reduce_sum(loss(labels, logits))
                scaled = lost * (descent.scale / batch)
            right = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32))
            sums = [*tape.gradient(scaled, variables), tf.stack([lost, right, asked])]
            context = tf.distribute.get_replica_context()
            *gradients, told = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
            descent.apply(gradients, replicas)
            return told

        def steps(iterator: Any, count: Any, asked: Any) -> Any:
            total = tf.zeros([3])
            for _ in tf.range(count):
                pixels, labels = next(iterator)
                out = strategy.run(step, args=(pixels, labels, asked))
                # Every replica has the same sums.
                total += strategy.experimental_local_results(out)[0]
            return total

        return tf.function(steps)

    def held_out_accuracy(self) -> float | None:
        """Return the share of right answers on the validation images; None if there are none."""
        count = self.images.counts.get("validation", 0)
        if self.images.folder is None or count == 0:
            return None
        strategy, model = self.strategy, self.model

        def step(pixels: Any, labels: Any) -> Any:
            logits = model(pixels, training=False)
            right = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32))
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, right)

        def one(iterator: Any) -> Any:
            return strategy.experimental_local_results(strategy.run(step, args=next(iterator)))[0]

        def of_worker(context: Any) -> Any:
            return data.held_out(self.images, self.options, context)

        compiled = tf.function(one)
        # Each worker reads every n-th image. A worker with one image less fills up with images that are never
        # right.
        batches = -(-count // self.global_batch) + 1
        iterator = iter(strategy.distribute_datasets_from_function(of_worker))
        return sum(float(compiled(iterator)) for _ in range(batches)) / count
