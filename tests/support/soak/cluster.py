"""The cluster of a soak: its stack file, its Slurm, its cloud, its daemons' processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from node import rpc
from node.processes import ProcessId
from node.slurm.control import Control, SlurmDown, SlurmError, is_unanswered
from operations.local.run_directory import RunDirectory
from tests.support.checkout import Checkout, until
from tests.support.processes import command_line, parent

PARTITIONS = {"debug": 6, "wide": 6, "gpu": 3}
"""Partition -> its largest number of nodes."""
GPUS = 2
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: 6}}, default: true}}
          - {{name: wide, instance_type: local.small, nodes: {{max: 6}}}}
          - name: gpu
            instance_type: local.medium
            accelerator: {{type: v100, count: 2}}
            nodes: {{max: 3}}
        slurm: {{suspend_time: 4, resume_timeout: 30, slurmd_timeout: 10}}
        local: {{isolation: {isolation}, boot_delay: 0.5}}
      slurm-stacks:benchmark: {{enabled: false}}
"""
CALM: dict[str, Any] = {
    "boot_delay": 0.5,
    "boot_spread": 0.0,
    "quota_nodes": None,
    "quota_gpus": None,
    **{f"capacity.{name}": None for name in PARTITIONS},
    "never_register": 0.0,
    "api_error": None,
    "api_latency": 0.0,
    "list_lag": 0.0,
}
"""The cloud's limits without faults."""
MARKS = {"elastic": "node.elastic.daemon", "agent": "localcloud.agent"}
DAEMONS = ("slurmctld", "elastic", "agent", "munged", "slurmd")


class _Outside(Control):
    """Slurm's commands through `./cluster exec`, which is the only access to a container cluster."""

    def __init__(self, checkout: Checkout) -> None:
        super().__init__("/nonexistent")
        self._checkout = checkout

    def run(self, *command: str) -> str:
        wanted = ("env", "SLURM_TIME_FORMAT=%s", *command)
        done = self._checkout.cluster("exec", "--", *wanted, timeout=60)
        if done.returncode:
            kind = SlurmDown if is_unanswered(done.stderr) else SlurmError
            raise kind(command, done.returncode, done.stderr)
        return done.stdout


class SoakCluster:
    """The cluster.

    Args:
        folder: where the checkout is made.
        isolation: process | container.
    """

    def __init__(self, folder: Path, isolation: str) -> None:
        self.checkout = Checkout(folder, STACK.format(isolation=isolation))
        self.run = RunDirectory(self.checkout.run_directory)
        process = isolation == "process"
        self.control: Control = (
            Control(self.run.path / "etc" / "slurm.conf", timeout=20) if process else _Outside(self.checkout)
        )

    def cloud(self, method: str, **params: Any) -> Any:
        """Make one of the local cloud's calls.

        Raises:
            RpcUnavailableError, RpcError: The cloud does not answer, or refuses.
        """
        return rpc.call(str(self.run.agent_socket), method, 20.0, **params)

    def machines(self) -> list[dict[str, Any]]:
        """Return the living compute machines."""
        found = self.cloud("inspect")["machines"]
        return [m for m in found if m["tags"]["role"] == "compute"]

    def saved(self) -> float:
        """Return when slurmctld last saved its queue (seconds since the epoch), or 0 if that is not known."""
        file = self.run.path / "state" / "job_state"
        return file.stat().st_mtime if file.exists() else 0.0

    def pids(self, daemon: str) -> list[int]:
        """Return the pids of one of DAEMONS."""
        found = []
        for pid in self.checkout.processes():
            argv = command_line(pid) or [""]
            if MARKS[daemon] in " ".join(argv) if daemon in MARKS else Path(argv[0]).name == daemon:
                found.append(pid)
        # Processes that are just becoming another program are left out.
        return [pid for pid in found if parent(pid) not in found]

    def jobs_processes(self) -> list[str]:
        """Return the processes on nodes, without the head's."""
        lines = [(pid, command_line(pid) or [""]) for pid in self.checkout.processes()]
        of_nodes = ("slurmd", "slurmstepd", "sleep")
        return [f"{pid} {' '.join(argv)}" for pid, argv in lines if Path(argv[0]).name in of_nodes]

    def kill(self, pid: int) -> None:
        """Kill a process and wait for its end, so that the next step does not find it."""
        process = ProcessId.of(pid)
        if process is not None:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not process.alive(), 60, f"the end of {pid}", 0.01)

    def memory_mib(self, daemon: str) -> float | None:
        """Return a daemon's memory in MiB, or `None` if it does not run at the moment."""
        for pid in self.pids(daemon):
            with contextlib.suppress(OSError):  # it has just ended
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        return int(line.split()[1]) / 1024
        return None
