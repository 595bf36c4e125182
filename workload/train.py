"""One task of the training: `srun python -m workload.train …`, or alone without Slurm.

What happens, in order: reserve a port and publish it, agree on the data, import TensorFlow, check the GPUs,
meet the other tasks, train, evaluate, write the result (the chief, rank 0), leave together.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from workload import result
from workload.errors import WorkloadError
from workload.options import LEARNING_RATE, Job, Options, parse, read_job
from workload.rendezvous import Rendezvous, announce, meet, reserve_port
from workload.slurm import Step, read_step, tf_config

if TYPE_CHECKING:
    from workload.data import Data
    from workload.loop import Epoch

END_SECONDS = 300.0
"""How long the other tasks wait while the chief evaluates and writes the result."""
STALL_SECONDS = 20.0
"""How long another task may go on once the result is written: `fit` sometimes stalls after its last epoch."""
LEAVE_SECONDS = 40.0
"""How long the chief, on whose server the others depend, stays for them."""
FOLLOW_SECONDS = 5.0


class Progress:
    """What a run has reached: lines for people, and progress.json beside the result for programs."""

    def __init__(self, options: Options, chief: bool) -> None:
        self.options, self.chief = options, chief
        self.path = options.result.with_name("progress.json")
        self.epochs: list[Epoch] = []

    def report(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        if self.chief:  # every worker has the same numbers
            print(
                f"Epoch {epoch.epoch}/{self.options.epochs} - {epoch.seconds:.1f}s "
                f"- loss: {epoch.loss:.4f} - accuracy: {epoch.accuracy:.4f}",
                flush=True,
            )
        self.state("training")

    def state(self, state: str) -> None:
        """starting | training | done | failed"""
        last = self.epochs[-1] if self.epochs else None
        if self.chief:
            result.write_json(
                self.path,
                {
                    "state": state,
                    "epoch": last.epoch if last else 0,
                    "epochs": self.options.epochs,
                    "loss": last.loss if last else None,
                    "accuracy": last.accuracy if last else None,
                    "seconds": round(sum(e.seconds for e in self.epochs), 3),
                },
            )


class Phases:
    """Where the time went, by name; from the monotonic clock."""

    def __init__(self) -> None:
        self.started = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now

    def total(self) -> float:
        return time.monotonic() - self.started


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task; the exit status. Wrong arguments end in argparse's status 2."""
    phases, now = Phases(), time.time()
    options = parse(arguments)
    rendezvous = progress = None
    where = os.environ.get("SLURMD_NODENAME", "localhost")
    try:
        step = read_step(os.environ)
        job = read_job(os.environ, now)
        rendezvous = Rendezvous(options.result.parent, step)
        progress = Progress(options, step.chief)
        if step.chief:
            options.result.unlink(missing_ok=True)  # an earlier run's: not what this one will have reached
        progress.state("starting")
        _run(options, step, job, rendezvous, progress, phases)
    except WorkloadError as error:
        message = str(error)
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
    else:
        return 0
    if rendezvous is not None and not rendezvous.step.chief and rendezvous.over():
        print(f"workload: {where}: after the end of the training: {message}", file=sys.stderr, flush=True)
        return 0  # the result is there: how this task ends changes nothing
    print(f"workload: {where}: {message}", file=sys.stderr, flush=True)
    if rendezvous is not None:
        rendezvous.publish("failed", {"message": f"task {rendezvous.step.rank} on {where} failed: {message}"})
    if progress is not None:
        progress.state("failed")
    return 1


def _run(
    options: Options, step: Step, job: Job, rendezvous: Rendezvous, progress: Progress, phases: Phases
) -> None:
    # TensorFlow reads these when it is imported or starts its server.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_GRPC_REUSE_PORT"] = "1"
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.pop("TF_CONFIG", None)
    # TensorFlow writes generated code to temporary files, and neither a task that is killed nor `_exit`
    # removes them: here the chief does, or whoever removes the run folder.
    tempfile.tempdir = str(rendezvous.folder.resolve())
    held = reserve_port()  # stays open as long as this task lives
    if step.size > 1:
        announce(rendezvous, held)
    if not step.chief:
        threading.Thread(target=_follow, args=(rendezvous,), daemon=True).start()
    data = _agree_on_data(options, step, rendezvous)
    phases.end("data")

    import tensorflow as tf

    from workload import devices, model
    from workload.loop import Plan

    phases.end("import")
    devices.set_up(options.gpus_per_node, step.tasks_on_node, step.node)
    names = devices.get_available_devices()
    print(names, flush=True)
    if step.size > 1:
        addresses = meet(rendezvous, options.rendezvous_timeout)
        os.environ["TF_CONFIG"] = tf_config(addresses, step.rank)
        if step.chief:
            print(f"workers: {', '.join(addresses)}", flush=True)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    phases.end("meet")

    plan = Plan(
        strategy=strategy,
        data=data,
        epochs=options.epochs,
        steps=_steps(options, step, len(data.x_train)),
        global_batch=options.batch * step.size,
        learning_rate=LEARNING_RATE,
        seed=options.seed,
        parts=options.parts,
    )
    if step.chief:
        print(
            f"Train on {data.name} for {plan.steps} steps an epoch, {options.epochs} epochs, "
            f"profile {options.profile}, global batch {plan.global_batch}",
            flush=True,
        )
    try:
        trained = _loop(options.profile)(plan, progress.report)
        phases.end("train")
        if options.weights is not None:
            _save_weights(options, step, trained)
        if step.chief:
            accuracy = model.held_out_accuracy(trained, data.x_test, data.y_test)
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        raise _stopped(error, step) from error
    except (tf.errors.InternalError, tf.errors.DeadlineExceededError) as error:
        raise _stopped(error, step) from error
    if not step.chief:
        # Not before: a worker that leaves early takes the chief's collective operations with it.
        rendezvous.collect("done", range(1), END_SECONDS, "result")
        rendezvous.publish("left", {})
        return
    phases.end("evaluate")
    record = _record(options, step, job, progress, phases, plan.global_batch, plan.steps)
    record |= {"devices": names, "data": data.name, "test_accuracy": accuracy}
    result.write(options.result, record)
    progress.state("done")
    print(f"test accuracy: {accuracy:.4f} on {data.name}")
    print("seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.seconds.items()))
    print(f"result: {options.result}", flush=True)
    _leave_last(rendezvous, step)


def _agree_on_data(options: Options, step: Step, rendezvous: Rendezvous) -> Data:
    """The chief chooses and the others follow: with `auto`, each might come to another answer."""
    from workload import data

    if step.chief:
        chosen = data.load(options.data, options.cache, options.mnist_file)
        rendezvous.publish("data", {"name": chosen.name})
        return chosen
    limit = options.rendezvous_timeout + data.DOWNLOAD_SECONDS + data.LOCK_SECONDS
    (note,) = rendezvous.collect("data", range(1), limit, "choice of data")
    return data.load(note["name"], options.cache, options.mnist_file)


def _steps(options: Options, step: Step, examples: int) -> int:
    """Of an epoch: as published, the examples that fill no whole global batch are left out."""
    global_batch = options.batch * step.size
    if global_batch > examples:
        raise WorkloadError(f"a global batch of {global_batch} is more than the {examples} examples")
    return min(examples // global_batch, options.steps_per_epoch or examples)


def _loop(profile: str) -> Any:
    if profile == "published":
        from workload import published

        return published.train
    from workload import sync

    return sync.train


def _stopped(error: Exception, step: Step) -> Exception:
    """What TensorFlow says when a peer is gone, in one sentence; any other error as it is."""
    if step.size == 1:
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The cause stands deep in a listing of the graph's nodes.
    reason = next((line for line in lines if "aborted by" in line), lines[0] if lines else "no reason given")
    return WorkloadError(f"the training stopped: another worker failed or went silent ({reason})")


def _save_weights(options: Options, step: Step, trained: Any) -> None:
    import numpy as np

    assert options.weights is not None
    options.weights.mkdir(parents=True, exist_ok=True)
    names = [f"{index:02d}" for index in range(len(trained.get_weights()))]
    with (options.weights / f"weights-{step.rank}.npz").open("wb") as file:
        np.savez(file, **dict(zip(names, trained.get_weights(), strict=True)))


def _record(
    options: Options, step: Step, job: Job, progress: Progress, phases: Phases, global_batch: int, steps: int
) -> dict[str, Any]:
    total, training = phases.total(), phases.seconds["train"]
    last = progress.epochs[-1]
    return {
        "apiVersion": result.API_VERSION,
        "stack": job.stack,
        "job_id": job.job_id,
        "partition": job.partition,
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
    }


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def _leave_last(rendezvous: Rendezvous, step: Step) -> None:
    """Let the others go first; the result is written, so whoever stays away changes nothing."""
    rendezvous.publish("done", {})
    try:
        rendezvous.collect("left", range(1, step.size), LEAVE_SECONDS, "farewell")
    except WorkloadError as error:
        print(f"left without the others: {error}", flush=True)
    rendezvous.close()


def _follow(rendezvous: Rendezvous) -> None:
    """End this task some time after the chief is done, wherever it is held up. Runs in a thread."""
    while not rendezvous.over():
        time.sleep(FOLLOW_SECONDS)
    time.sleep(STALL_SECONDS)
    print(f"{rendezvous.step.node}: stalled after the training; the result is written: leaving", flush=True)
    with contextlib.suppress(OSError):  # the chief may have left and taken the folder along
        rendezvous.publish("left", {})
    _exit(0)


def _exit(status: int) -> None:
    """End at once: all is written, and TensorFlow's threads sometimes keep a worker 10-30 s after `fit`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _exit(main())
