"""The training by Keras's `fit`: calls of several steps, one all-reduce a step, checkpoints between calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from workload.checkpoint import Checkpoint, Store
from workload.errors import StoppedError, WorkloadError
from workload.loop import Position, Report, State
from workload.program import VALUES
from workload.resnet import images as data
from workload.resnet import network
from workload.resnet.options import Options
from workload.result import Epoch

CALL_STEPS = 10
"""The steps of one call. A training that is asked to end ends after a call."""
SAY_SECONDS = 30.0


@dataclass(slots=True)
class Speed:
    """Images a second after the first call, which makes TensorFlow's graph and fills the buffers."""

    images: int = 0
    seconds: float = 0.0
    first: tuple[int, float] | None = None

    def add(self, images: int, seconds: float) -> None:
        """Add a call's images and seconds."""
        if self.first is None:
            self.first = (images, seconds)
        else:
            self.images += images
            self.seconds += seconds

    def rate(self) -> float:
        """Return the images a second; those of the first call if there is no other."""
        images, seconds = (self.images, self.seconds) if self.images else (self.first or (0, 1.0))
        return images / seconds


@dataclass(frozen=True, slots=True)
class Watch:
    """Callbacks of a training.

    Attributes:
        report: Called at the end of every epoch, on every worker.
        say: Called with lines for the log, on every worker.
        asked: Returns whether this worker was asked to end.
    """

    report: Report
    say: Callable[[str], None]
    asked: Callable[[], bool]


class Training:
    """One start of a training, on one worker. It continues from the chief's checkpoint, if there is one.

    Args:
        options: The options.
        strategy: TensorFlow's distribution strategy.
        images: The images to train on.
        chief: Whether this worker writes the checkpoints.
        watch: The callbacks.
        mixed: Whether layers compute in float16.

    Attributes:
        model: The network.
        steps: The steps of an epoch.
        speed: The images a second of this start.
        history: The epochs that earlier starts have done.
        resumed: The step of the checkpoint from which this start continues; 0 means from the beginning.

    Raises:
        WorkloadError: There are too few images, or the checkpoint is of another training.
    """

    def __init__(
        self,
        options: Options,
        strategy: Any,
        images: data.Images,
        chief: bool,
        watch: Watch,
        mixed: bool = False,
    ) -> None:
        self.options, self.strategy, self.images = options, strategy, images
        self.watch, self._chief = watch, chief
        self.speed = Speed()
        available = images.counts["train"] // self.global_batch
        if available == 0:
            raise WorkloadError(
                f"a batch of all workers takes {self.global_batch} of the images, and there are only "
                f"{images.counts['train']}: use fewer nodes or a smaller --batch"
            )
        self.steps = min(available, options.steps or available)
        self.total = self.steps * options.epochs
        self._store = Store(options.folder / VALUES, self._identity())
        checkpoint = self._load()
        self.history: tuple[Epoch, ...] = checkpoint.history if checkpoint else ()
        self.position = checkpoint.state.position if checkpoint else Position()
        self.resumed = self.position.step
        tf.keras.mixed_precision.set_global_policy("mixed_float16" if mixed else "float32")
        tf.keras.utils.set_random_seed(options.seed)
        peak = options.learning_rate * self.global_batch / network.PUBLISHED_BATCH
        schedule = network.Schedule(peak, self.total, round(self.steps * options.warmup_epochs))
        scale, *state = checkpoint.state.momentum if checkpoint else [np.float32(network.FIRST_SCALE)]
        with strategy.scope():
            self.model = network.build(options.network, images.classes, options.image_size)
            self._optimizer = network.optimizer(schedule, float(scale) if mixed else None)
            self._optimizer.build(self.model.trainable_variables)
            if checkpoint is not None:
                self.model.set_weights(checkpoint.state.weights)
                for variable, value in zip(self._optimizer_variables(), state, strict=False):
                    variable.assign(value)
            self.model.compile(
                optimizer=self._optimizer,
                loss=network.loss,
                metrics=["accuracy"],
                steps_per_execution=CALL_STEPS,
            )
        # By "auto" each step would have a further all-reduce, for the values that it returns.
        self.model.distribute_reduction_method = "first"

    @property
    def global_batch(self) -> int:
        """Return the images of a step on all workers."""
        return self.options.batch * int(self.strategy.num_replicas_in_sync)

    def run(self) -> None:
        """Train to the end.

        Raises:
            StoppedError: A worker was asked to end; the training is saved.
            WorkloadError: The training has diverged.
        """
        calls = _Calls(self)
        while self.position.step < self.total:
            epoch, first = divmod(self.position.step, self.steps)
            self.model.fit(
                self._dataset(epoch, first),
                initial_epoch=epoch,
                epochs=epoch + 1,
                steps_per_epoch=self.steps - first,
                verbose=0,
                callbacks=[calls],
            )

    def advance(self, position: Position, stop: bool) -> None:
        """Take the position after a call; at an epoch's end report it. Save then, and when it is time to.

        Args:
            position: The position.
            stop: Whether the training ends here.
        """
        before, self.position = self.position.step, position
        every = self.options.checkpoint_steps
        due = stop or (every > 0 and position.step // every > before // every)
        if position.step % self.steps == 0:
            epoch = position.epoch(self.steps, self.global_batch)
            self.position, due = Position(position.step), True
            self.history += (epoch,)
            self.watch.report(epoch)
        if due:
            self._save()

    def _save(self) -> None:
        """Have the chief save. All workers call this, because they share the normalizations' statistics."""
        scale = np.float32(getattr(self._optimizer, "loss_scale", network.FIRST_SCALE))
        state = State(
            self.position,
            self.model.get_weights(),
            momentum=[scale, *(variable.numpy() for variable in self._optimizer_variables())],
        )
        if self._chief:
            self._store.save(Checkpoint(state, self.history))

    def _identity(self) -> dict[str, Any]:
        """Return the values that must be equal for a training to continue from this one's checkpoint."""
        options = self.options
        return {
            **{name: getattr(options, name) for name in ("network", "epochs", "image_size", "seed")},
            **{"classes": self.images.classes, "steps": self.steps, "global_batch": self.global_batch},
        }

    def _load(self) -> Checkpoint | None:
        try:
            checkpoint = self._store.read()
        except FileNotFoundError:
            return None
        except WorkloadError as error:
            raise WorkloadError(f"{error}. Remove the file or take the same options") from error
        step = checkpoint.state.position.step
        self.watch.say(f"going on from step {step} of {self.total}")
        return checkpoint

    def _optimizer_variables(self) -> list[Any]:
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        counter = [self._optimizer.dynamic_counter] if inner is not self._optimizer else []
        return [inner.iterations, *inner.momentums, *counter]

    def _dataset(self, epoch: int, first: int) -> Any:
        """Return an epoch's batches from step `first` on."""

        def of_worker(context: Any) -> Any:
            local = context.num_replicas_in_sync // context.num_input_pipelines
            return data.training(
                self.images, self.options, context, epoch, first * self.options.batch * local
            )

        return self.strategy.distribute_datasets_from_function(of_worker)

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

        def batch(iterator: Any) -> Any:
            return strategy.experimental_local_results(strategy.run(step, args=next(iterator)))[0]

        def of_worker(context: Any) -> Any:
            return data.held_out(self.images, self.options, context)

        compiled = tf.function(batch)
        # Each worker reads every n-th image. A worker with one image less fills up with images that are never
        # right.
        batches = -(-count // self.global_batch) + 1
        iterator = iter(strategy.distribute_datasets_from_function(of_worker))
        return sum(float(compiled(iterator)) for _ in range(batches)) / count


class _Calls(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Takes the time and the sums of each call of `fit`, and ends the training on all workers together."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training
        self._sums = tf.function(self._sums_of_workers, autograph=False)
        self._done = 0
        self._began = 0.0
        self._spoken = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count the steps of one `fit`."""
        self._done = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a call."""
        self._began = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End a call: add up, report, save.

        Raises:
            StoppedError: A worker was asked to end.
        """
        training, watch = self._training, self._training.watch
        # Each call has sums of its own, so that an interrupted training has the same history as others.
        loss, _, right, _, asked = map(float, self._sums(tf.constant(float(watch.asked()))))
        seconds = time.monotonic() - self._began
        steps, self._done = batch + 1 - self._done, batch + 1
        images = steps * training.global_batch
        training.speed.add(images, seconds)
        at = training.position
        at = Position(
            at.step + steps,
            at.loss + loss,
            at.right + right,
            at.seconds + seconds,
        )
        if time.monotonic() - self._spoken > SAY_SECONDS:
            rate = training.speed.rate()
            watch.say(f"step {at.step} of {training.total}: loss {loss / images:.4f}, images/s: {rate:.0f}")
            self._spoken = time.monotonic()
        stop = asked > 0 and at.step < training.total
        training.advance(at, stop)
        if stop:
            # No worker leaves before the chief has saved.
            self._sums(tf.constant(0.0))
            raise StoppedError(f"stopped after step {at.step} of {training.total}, saved")

    def _sums_of_workers(self, asked: Any) -> Any:
        """Return the sums of all workers: each metric's total and count, and `asked`. Metrics begin anew."""
        strategy, metrics = self._training.strategy, self.model.metrics

        def summed(asked: Any) -> Any:
            variables = [variable for metric in metrics for variable in (metric.total, metric.count)]
            values = tf.stack([*variables, asked])
            for variable in variables:
                variable.assign(0.0)
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

        return strategy.experimental_local_results(strategy.run(summed, args=(asked,)))[0]
