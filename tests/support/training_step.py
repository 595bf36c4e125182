"""Tasks of a training as srun would start them, but without Slurm: for tests in the training environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


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
        command = [
            *(sys.executable, "-m", "workload.train", "--data", "synthetic", "--cache", str(cache)),
            *("--result", str(self.result), "--weights", str(folder / f"weights-{job}")),
            *("--profile", "sync", *arguments),
        ]
        step = {
            "PYTHONPATH": str(ROOT),
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
        self.processes = []
        for rank in range(tasks):
            env = os.environ | step | {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"127.0.0.{rank + 1}"}
            with self._output(rank).open("wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )

    def _output(self, rank: int) -> Path:
        return self.folder / f"out-{self.job}-{self.restarts}-{rank}.txt"

    def output(self, rank: int = 0) -> str:
        return self._output(rank).read_text(encoding="utf-8", errors="replace")

    def wait(self, limit: float = 600) -> list[int]:
        end = time.monotonic() + limit
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def wait_for(self, text: str, limit: float = 600) -> None:
        """Wait until the chief has printed this."""
        end = time.monotonic() + limit
        while True:
            # The order matters, so that the last output counts too.
            over = self.processes[0].poll() is not None
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
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].send_signal(number)

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def weights(self, rank: int = 0) -> list[Any]:
        with np.load(self.folder / f"weights-{self.job}" / f"weights-{rank}.npz") as file:
            return [file[name] for name in sorted(file)]
