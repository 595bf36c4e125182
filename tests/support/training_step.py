"""Tasks of a training as srun would start them, but without Slurm: for tests in the training environment.

Each task is a process of its own. It is forked from a server that has imported TensorFlow and computed
nothing, because that import takes more CPU than all else of a short training.
tests/cluster/test_benchmark_training.py runs the whole command, through sbatch and srun.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MODULE = "workload.train"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tensorflow", "tf_keras"])


def _run_module(folder: Path, output: Path, env: Mapping[str, str], arguments: list[str]) -> None:
    """Do in a forked process what `python -m workload.train` does in one of its own."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    with output.open("wb") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    sys.argv = [MODULE, *arguments]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


class Run:
    """The tasks of one job step, started at once. Jobs may share a run folder, and a job may start again.

    Args:
        cache: the folder of the data.
        arguments: the arguments of `workload.train`; the profile is `sync` unless they name another.
        restarts: how often Slurm has queued the job again.
        submitted: UTC, seconds since the epoch, the same for every start of a job; by default a second ago.
    """

    def __init__(
        self,
        folder: Path,
        cache: Path,
        job: str,
        tasks: int,
        *arguments: str,
        restarts: int = 0,
        submitted: float = 0,
    ) -> None:
        self.folder, self.job, self.restarts = folder, job, restarts
        self.result = folder / f"result-{job}.json"
        self.temporary = folder / f"tmp-{job}"
        self.temporary.mkdir(exist_ok=True)
        words = [
            *("--data", "synthetic", "--cache", str(cache), "--result", str(self.result)),
            *("--weights", str(folder / f"weights-{job}"), "--profile", "sync", *arguments),
        ]
        step = {
            "TMPDIR": str(self.temporary),
            "SLURM_JOB_ID": job,
            "SLURM_JOB_PARTITION": "debug",
            "SLURM_JOB_NUM_NODES": str(tasks),
            "SLURM_STEP_ID": "0",
            # Addresses in place of names, so no name has to be resolved.
            "SLURM_STEP_NODELIST": f"127.0.0.[1-{tasks}]",
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{tasks})",
            "SLURM_STACKS_STACK": "local",
            "SLURM_STACKS_MACHINE": "process",
            "SLURM_STACKS_PRICE_HOUR": "3.6",
            "SLURM_STACKS_SUBMITTED": repr(submitted or time.time() - 1),
            "SLURM_STACKS_ELIGIBLE": str(int(submitted or time.time() - 1)),
        }
        if restarts:
            step["SLURM_RESTART_COUNT"] = str(restarts)
        self._processes = []
        for rank in range(tasks):
            env = os.environ | step | {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"127.0.0.{rank + 1}"}
            self._output(rank).touch()
            task = (folder, self._output(rank), env, words)
            self._processes.append(_SERVER.Process(target=_run_module, args=task, daemon=True))
            self._processes[-1].start()

    def _output(self, rank: int) -> Path:
        return self.folder / f"out-{self.job}-{self.restarts}-{rank}.txt"

    def output(self, rank: int = 0) -> str:
        return self._output(rank).read_text(encoding="utf-8", errors="replace")

    def wait(self, limit: float = 600) -> list[int | None]:
        """Return the tasks' exit statuses, None for a task that goes on after these seconds."""
        end = time.monotonic() + limit
        return [self.wait_for_end(rank, end - time.monotonic()) for rank in range(len(self._processes))]

    def wait_for_end(self, rank: int, limit: float = 600) -> int | None:
        """Return a task's exit status, None if it goes on after these seconds."""
        self._processes[rank].join(max(0.1, limit))
        return self._processes[rank].exitcode

    def wait_for(self, text: str, limit: float = 600) -> None:
        """Wait until the chief has printed this."""
        end = time.monotonic() + limit
        while True:
            # The order matters, so that the last output counts too.
            over = self._processes[0].exitcode is not None
            if text in self.output():
                return
            assert not over, self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.05)

    def wait_for_start(self, rank: int, limit: float = 600) -> None:
        """Wait until this task has left a note. It handles signals from then on."""
        end = time.monotonic() + limit
        while not list(self.folder.glob(f".rendezvous/{self.job}.*/address-{rank}.json")):
            assert time.monotonic() < end, self.output(rank)
            time.sleep(0.02)

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to these tasks, or to all."""
        for rank in ranks or range(len(self._processes)):
            process = self._processes[rank]
            assert process.pid is not None
            os.kill(process.pid, number)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def weights(self, rank: int = 0) -> list[Any]:
        with np.load(self.folder / f"weights-{self.job}" / f"weights-{rank}.npz") as file:
            return [file[name] for name in sorted(file)]


def train_here(
    cache: Path, steps: int, epochs: int, **values: Any
) -> tuple[list[Any], list[tuple[float, float]]]:
    """Train on the data of `Run` in this process, with the profile `sync` and one worker.

    Returns:
        The weights, and each epoch's loss and accuracy.
    """
    import tensorflow as tf

    from workload import data, sync
    from workload.loop import Plan
    from workload.options import LEARNING_RATE
    from workload.result import Epoch

    ended: list[Epoch] = []
    plan = Plan(
        strategy=tf.distribute.get_strategy(),
        data=data.load("synthetic", cache),
        epochs=epochs,
        steps=steps,
        learning_rate=LEARNING_RATE,
        **({"seed": 0} | values),
    )
    trained = sync.train(plan, ended.append)
    return trained.get_weights(), [(epoch.loss, epoch.accuracy) for epoch in ended]
