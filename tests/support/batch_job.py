"""The nodes of an AWS Batch multi-node parallel job as processes of this machine, each with an address.

Each runs the container's entry point with the variables that AWS Batch sets.
Source: docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workload.rendezvous import reserve_program_port

ROOT = Path(__file__).resolve().parents[2]
ID = "0b1c2d3e-1111-2222-3333-444455556666"
LIMIT_SECONDS = 120.0


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


class BatchJob:
    """A job whose nodes start when they are told to. They end with the test.

    Args:
        folder: Holds JOB_DIR, the nodes' disks and their logs.
        nodes: The number of nodes.
        command: The program and its arguments.
        main: The number of the main node.
        addresses: The nodes' addresses; by default they are all of this machine's loopback.
        into: Node -> what stands before a command that runs there.
        env: More variables of every node.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *command: str,
        main: int = 0,
        addresses: Sequence[str] = (),
        into: Callable[[int], list[str]] = lambda node: [],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.nodes, self.main = folder, nodes, main
        self.shared = folder / "fsx"
        self.shared.mkdir(parents=True, exist_ok=True)
        # A killed node cannot remove its temporary files.
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self._command, self._into, self._env = command, into, dict(env or {})
        self._addresses = addresses or [f"127.0.0.{node + 1}" for node in range(nodes)]
        self._loopback = not addresses
        self._port, self._lock = reserve_program_port()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def run_folder(self) -> Path:
        return self.shared / "runs" / ID

    def variables(self, node: int) -> dict[str, str]:
        made = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", "/"),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "AWS_BATCH_JOB_ID": f"{ID}#{node}",
            "AWS_BATCH_JOB_ATTEMPT": "1",
            "AWS_BATCH_JOB_NODE_INDEX": str(node),
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(self.main),
            "AWS_BATCH_JOB_NUM_NODES": str(self.nodes),
            "JOB_DIR": str(self.shared),
            "SCRATCH_DIR": str(self.folder / f"scratch-{node}"),
            "BATCH_SIZE": "8",
            "SLURM_STACKS_PORT": str(self._port),
        }
        if node != self.main:
            made["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = self._addresses[self.main]
        if self._loopback:
            made["SLURM_STACKS_ADDRESS"] = self._addresses[node]
        return made | self._env

    def start(self, *nodes: int, **env: str) -> None:
        """Start these nodes, or all."""
        for node in nodes or range(self.nodes):
            with self._log(node).open("ab") as log:
                self.processes[node] = subprocess.Popen(
                    [*self._into(node), sys.executable, "-m", "workload.batch.entry", *self._command],
                    env=self.variables(node) | env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def _log(self, node: int) -> Path:
        return self.folder / f"log-{node}.txt"

    def log(self, node: int) -> str:
        return self._log(node).read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- node {node}\n{self.log(node)}" for node in sorted(self.processes))

    def wait(self) -> list[int]:
        """Wait for the end of all nodes that have started: their exit statuses in their order."""
        until(lambda: all(p.poll() is not None for p in self.processes.values()), self.logs)
        return [self.processes[node].returncode for node in sorted(self.processes)]

    def wait_for_log(self, node: int, text: str) -> None:
        until(lambda: text in self.log(node), self.logs)

    def wait_for_files(self, pattern: str, count: int) -> list[Path]:
        """Wait until the job's folder has so many files of this name, and return them in order."""
        until(lambda: len(list(self.run_folder.glob(pattern))) == count, self.logs)
        return sorted(self.run_folder.glob(pattern))

    def signal(self, node: int, number: signal.Signals) -> None:
        self.processes[node].send_signal(number)

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_folder / "result.json").read_text())
        return found

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self._lock.close()
