"""Runs one task of the training: `srun python -m workload.train …`, or a single task without Slurm.

The steps: reserve and publish a port, agree on the data and the checkpoint, import TensorFlow, check the
GPUs, meet the other tasks, train, evaluate, write the result (the chief, rank 0), leave together. SIGTERM
ends a task early, with the training saved (`workload.preemption`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workload import cores, result, runtime
from workload.errors import PeerLostError, StoppedError, WorkloadError
from workload.options import Options, parse
from workload.preemption import Preemption, block
from workload.preemption import end_at_once as _exit
from workload.rendezvous import Rendezvous, announce, reserve_port
from workload.slurm import Job, Step, read_job, read_step

if TYPE_CHECKING:
    from workload.checkpoint import Checkpoint, Store
    from workload.data import Data
    from workload.progress import Phases, Progress
    from workload.result import Epoch
    from workload.workers import Connection

END_SECONDS = 300.0
"""How long the other tasks wait while the chief evaluates and writes the result."""
STALL_SECONDS = 20.0
"""How long another task may go on after the result is written. `fit` sometimes stalls after its last
epoch."""
LEAVE_SECONDS = 40.0
"""How long the chief waits for the others to leave. They depend on its server."""
FOLLOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """This task, with the objects that it uses from start to end."""

    options: Options
    step: Step
    job: Job
    rendezvous: Rendezvous
    progress: Progress
    phases: Phases
    preemption: Preemption


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the tasks have agreed on before the training.

    Attributes:
        data: The images and labels.
        steps: The steps of an epoch.
        store: The place of the checkpoint.
        checkpoint: The checkpoint from which the training continues, if there is one.
    """

    data: Data
    steps: int
    store: Store
    checkpoint: Checkpoint | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task, and return its exit status. Wrong arguments end in argparse's status 2."""
    now = time.time()
    from workload.progress import Phases, Progress

    phases, options = Phases(), parse(arguments)
    rendezvous = progress = None
    where = os.environ.get("SLURMD_NODENAME", "localhost")
    try:
        step = read_step(os.environ)
        job = read_job(os.environ, now)
        rendezvous = Rendezvous(options.result.parent, step)
        progress = Progress(options, step.chief)
        if step.chief and not (job.restarts and result.is_of_job(options.result, job.job_id)):
            options.result.unlink(missing_ok=True)  # it belongs to an earlier run
            progress.state("starting")
        with Preemption(rendezvous, job.restarts) as preemption:
            return _attempt(Task(options, step, job, rendezvous, progress, phases, preemption))
    except WorkloadError as error:
        message = str(error)
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
    if rendezvous is not None and not rendezvous.step.chief and rendezvous.over():
        print(f"workload: {where}: after the end of the training: {message}", file=sys.stderr, flush=True)
        return 0  # the result is written, so this error does not matter
    print(f"workload: {where}: {message}", file=sys.stderr, flush=True)
    if rendezvous is not None:
        rendezvous.publish("failed", {"message": f"task {rendezvous.step.rank} on {where} failed: {message}"})
    if progress is not None:
        progress.state("failed")
    return 1


def _attempt(task: Task) -> int:
    """Run the task, and return its exit status, which may ask for the job to be queued again."""
    try:
        _run(task)
        return 0
    except StoppedError as stop:
        print(f"{task.step.node}: {stop}", flush=True)
    except Exception as error:
        if not task.step.chief and task.rendezvous.over():
            raise
        task.preemption.look()
        # A task that fails leaves a note that says why. The tasks of a machine that dies leave none.
        lost = isinstance(error, PeerLostError) and not task.rendezvous.any("failed")
        if not lost and not task.preemption.asked():
            raise
        print(f"workload: {task.step.node}: {error}", file=sys.stderr, flush=True)
    task.progress.state("stopped")
    return task.preemption.leave()


def _run(task: Task) -> None:
    options, step, rendezvous, phases = task.options, task.step, task.rendezvous, task.phases
    runtime.set_variables(runtime.log_level(options.gpus_per_node))
    os.environ["TF_GRPC_REUSE_PORT"] = "1"  # TensorFlow reads it when it starts its server
    os.environ.pop("TF_CONFIG", None)
    # TensorFlow writes generated code to temporary files, and neither a task that is killed nor `_exit`
    # removes them: here the chief does, or the next start of the job, or whoever removes the run folder.
    tempfile.tempdir = str(rendezvous.folder.resolve())
    reserved = reserve_port()  # stays open as long as this task runs
    if step.size > 1:
        announce(rendezvous, reserved)
    if not step.chief:
        threading.Thread(target=_follow, args=(rendezvous,), daemon=True).start()
    beginning = _begin(task)
    if beginning is None:
        print(f"the result of job {task.job.job_id} is there already: {options.result}", flush=True)
        return
    phases.end("data")

    with runtime.without_collection():
        import tensorflow as tf

        from workload import workers

    phases.end("import")
    runtime.set_up_gpus(options.gpus_per_node, step.tasks_on_node, step.node)
    devices = runtime.get_available_devices()
    print(devices, flush=True)
    connection = workers.connect(options, step, rendezvous, reserved)
    phases.end("meet")
    try:
        accuracy = _train(task, beginning, connection)
    except tf.errors.OpError as error:
        if (meaning := connection.meant_by(error)) is error:
            raise
        raise meaning from error
    if accuracy is None:
        # Do not end before the chief: its collective operations fail if a worker ends early.
        rendezvous.collect("done", range(1), END_SECONDS, "result")
        rendezvous.publish("left", {})
        return
    phases.end("evaluate")
    _finish(task, beginning, devices, accuracy)


def _begin(task: Task) -> Beginning | None:
    """Agree on the data and the checkpoint. Return None if an earlier start of the job wrote its result.

    The chief chooses and the others follow, because with `auto` data each might choose differently.
    """
    from workload import data
    from workload.checkpoint import Store

    options, job, rendezvous = task.options, task.job, task.rendezvous
    if task.step.chief:
        rendezvous.forget_earlier_starts(job.restarts)
        if options.result.exists():
            task.preemption.finishing()
            Store(options.result, {}).remove()
            rendezvous.publish("data", {"name": None})
            _leave_last(rendezvous, task.step)
            return None
        chosen = data.load(options.data, options.cache, options.mnist_file)
        beginning = _beginning(task, chosen)
        step = beginning.checkpoint.state.position.step if beginning.checkpoint else 0
        rendezvous.publish("data", {"name": chosen.name, "step": step})
    else:
        limit = options.rendezvous_timeout + data.DOWNLOAD_SECONDS + data.LOCK_SECONDS
        (note,) = rendezvous.collect("data", range(1), limit, "choice of data")
        if note["name"] is None:
            task.preemption.finishing()
            rendezvous.publish("left", {})
            return None
        beginning = _beginning(task, data.load(note["name"], options.cache, options.mnist_file), note["step"])
    if (checkpoint := beginning.checkpoint) is not None:
        task.phases.resume(checkpoint.seconds_total)
        task.progress.resume(checkpoint.history, checkpoint.state.position.step, beginning.steps)
        task.progress.state("training")
    return beginning


def _beginning(task: Task, data: Data, step: int | None = None) -> Beginning:
    """Return the data and the checkpoint to continue from, if there is one.

    Args:
        step: The step of the chief's checkpoint; None if this task is the chief.

    Raises:
        WorkloadError: This task does not find the chief's checkpoint.
    """
    from workload.checkpoint import Store

    steps = _steps(task.options, task.step, len(data.x_train))
    store = Store(task.options.result, _identity(task, data.name, steps))
    checkpoint = None
    if step is None and not task.job.restarts:
        store.remove()  # it belongs to an earlier run
    elif step != 0:
        checkpoint = store.load()
        if step is not None and (checkpoint is None or checkpoint.state.position.step != step):
            raise WorkloadError(f"{store.path} is not the checkpoint that the chief has found")
    return Beginning(data, steps, store, checkpoint)


def _identity(task: Task, data: str, steps: int) -> dict[str, Any]:
    """Return the values that must be equal for a run to continue from this run's checkpoint."""
    options, job = task.options, task.job
    return {
        # Storage may outlive a cluster, and the next one's jobs begin at 1 again: the time of submission
        # differs.
        "job": job.job_id,
        "submitted": job.submitted,
        "code": job.digest,
        "workers": task.step.size,
        "profile": options.profile,
        "data": data,
        "epochs": options.epochs,
        "steps": steps,
        "batch": options.batch,
        "parts": options.parts,
        "gpus": options.gpus_per_node,
        "seed": options.seed,
        "learning_rate": options.learning_rate,
        "average_every": options.average_every,
    }


def _steps(options: Options, step: Step, examples: int) -> int:
    """Return the steps of an epoch. As published, examples that do not fill a global batch are left out."""
    global_batch = options.batch * step.size
    if global_batch > examples:
        raise WorkloadError(f"a global batch of {global_batch} is more than the {examples} examples")
    return min(examples // global_batch, options.steps_per_epoch or examples)


def _train(task: Task, beginning: Beginning, connection: Connection) -> float | None:
    """Train. The chief also evaluates, and returns the accuracy on held-out images."""
    from workload.checkpoint import Saver, save_weights
    from workload.loop import Plan, Report, go_on
    from workload.progress import TensorBoardLogs
    from workload.published import held_out_accuracy

    options, step, checkpoint = task.options, task.step, beginning.checkpoint
    plan = Plan(
        strategy=connection.strategy,
        ring=connection.ring,
        data=beginning.data,
        epochs=options.epochs,
        steps=beginning.steps,
        global_batch=options.batch * step.size,
        learning_rate=options.learning_rate,
        seed=options.seed,
        parts=options.parts,
        average_every=options.average_every,
        tell=task.progress.tell,
    )
    saver = Saver(
        beginning.store,
        task.preemption,
        task.progress,
        task.phases,
        every=options.checkpoint_seconds,
        steps=plan.epochs * plan.steps,
        start_latency=_start_latency(task.job, checkpoint),
    )
    task.preemption.training()
    task.rendezvous.publish(cores.TOPIC, cores.mine(step.node, task.job.machine))
    if step.chief:
        epochs = "1 epoch" if plan.epochs == 1 else f"{plan.epochs} epochs"
        steps = "1 step" if plan.steps == 1 else f"{plan.steps} steps"
        print(
            f"Train on {plan.data.name} for {steps} an epoch, {epochs}, "
            f"profile {options.profile}, global batch {plan.global_batch}",
            flush=True,
        )
    report: Report = functools.partial(_report, task)
    logs = None
    if step.chief:  # every worker has the same numbers
        logs = TensorBoardLogs(options.result, plan.steps * plan.global_batch, resumed=checkpoint is not None)
        report = logs.beside(report)
    trained = _loop(options.profile)(
        plan, report, checkpoint.state if checkpoint else None, saver.between if step.chief else go_on
    )
    task.preemption.finishing()
    task.phases.end("train")
    if options.weights is not None:
        save_weights(options.weights, step.rank, trained.get_weights())
    if logs is None:
        return None
    accuracy = held_out_accuracy(trained, plan.data.x_test, plan.data.y_test)
    logs.end(accuracy, plan.epochs)
    return accuracy


def _report(task: Task, epoch: Epoch) -> None:
    """Report an epoch, and after the last one what this task's cores have done.

    It is not left to the end of the training, because `fit` sometimes stalls after its last epoch.
    """
    if epoch.epoch == task.options.epochs:
        task.rendezvous.publish(cores.AFTER, cores.mine(task.step.node, task.job.machine))
    task.progress.report(epoch)


def _loop(profile: str) -> Any:
    if profile == "published":
        from workload import published

        return published.train
    if profile == "local-sgd":
        from workload import local_sgd

        return local_sgd.train
    from workload import sync

    return sync.train


def _start_latency(job: Job, checkpoint: Checkpoint | None) -> float | None:
    """Return the start latency of the first start that saved a checkpoint, else of this start."""
    return job.start_latency if checkpoint is None else checkpoint.start_latency


def _finish(task: Task, beginning: Beginning, devices: list[str], accuracy: float) -> None:
    """Write the result, and leave last."""
    from workload.progress import make_record

    options, step = task.options, task.step
    job = dataclasses.replace(task.job, start_latency=_start_latency(task.job, beginning.checkpoint))
    record = make_record(
        options, step, job, task.progress, task.phases, options.batch * step.size, beginning.steps
    )
    record |= {"devices": devices, "data": beginning.data.name, "test_accuracy": accuracy}
    record["versions"] |= runtime.gpu_versions()
    record |= cores.of_tasks(task.rendezvous, step.size, END_SECONDS)
    result.write(options.result, record)
    task.progress.state("done")
    beginning.store.remove()
    print(f"test accuracy: {accuracy:.4f} on {beginning.data.name}")
    print("seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in task.phases.seconds.items()))
    print(f"result: {options.result}", flush=True)
    _leave_last(task.rendezvous, step)


def _leave_last(rendezvous: Rendezvous, step: Step) -> None:
    """Wait for the other tasks to leave. A task that does not answer is ignored: the result is written."""
    rendezvous.publish("done", {})
    try:
        rendezvous.collect("left", range(1, step.size), LEAVE_SECONDS, "farewell")
    except WorkloadError as error:
        print(f"left without the others: {error}", flush=True)
    rendezvous.close()


def _follow(rendezvous: Rendezvous) -> None:
    """End this task some time after the chief is done, even if it hangs. This runs in a thread."""
    while not rendezvous.over():
        time.sleep(FOLLOW_SECONDS)
    time.sleep(STALL_SECONDS)
    print(f"{rendezvous.step.node}: stalled after the training; the result is written: leaving", flush=True)
    with contextlib.suppress(OSError):  # the chief may have left and removed the folder
        rendezvous.publish("left", {})
    _exit(0)


if __name__ == "__main__":
    block()  # before any thread, and for as long as the task lives
    _exit(main())
