"""The cluster that is soaked: its stack file, its Slurm, its cloud, its daemons' processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from cli.local.site import RunDirectory
from node import rpc
from node.processes import ProcessId
from node.slurm.control import Control, SlurmDown, SlurmError, is_unanswered
from tests.support.checkout import Checkout, until
from tests.support.processes import command_line, parent

PARTITIONS = {"debug": 6, "wide": 6, "gpu": 3}
"""Name -> its most nodes."""
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
"""The cloud's limits when nothing is wrong with it."""
MARKS = {"elastic": "node.elastic.daemon", "agent": "localcloud.agent"}
DAEMONS = ("slurmctld", "elastic", "agent", "munged", "slurmd")


class _Outside(Control):
    """Slurm's commands through `./cluster exec`: nothing of a container cluster is reached otherwise."""

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
    """Args:
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
        """One of the local cloud's calls.

        Raises:
            RpcUnavailableError, RpcError: it does not answer, or refuses.
        """
        return rpc.call(str(self.run.agent_socket), method, 20.0, **params)

    def machines(self) -> list[dict[str, Any]]:
        """Compute machines that live."""
        found = self.cloud("inspect")["machines"]
        return [m for m in found if m["tags"]["role"] == "compute"]

    def saved(self) -> float:
        """When slurmctld last wrote its queue down, in seconds since the epoch; 0 where it cannot be seen."""
        file = self.run.path / "state" / "job_state"
        return file.stat().st_mtime if file.exists() else 0.0

    def pids(self, daemon: str) -> list[int]:
        """Of one of DAEMONS."""
        found = []
        for pid in self.checkout.processes():
            argv = command_line(pid) or [""]
            if MARKS[daemon] in " ".join(argv) if daemon in MARKS else Path(argv[0]).name == daemon:
                found.append(pid)
        # Not those that are just becoming another program.
        return [pid for pid in found if parent(pid) not in found]

    def jobs_processes(self) -> list[str]:
        """What runs on nodes: none of it is the head's."""
        lines = [(pid, command_line(pid) or [""]) for pid in self.checkout.processes()]
        of_nodes = ("slurmd", "slurmstepd", "sleep")
        return [f"{pid} {' '.join(argv)}" for pid, argv in lines if Path(argv[0]).name in of_nodes]

    def kill(self, pid: int) -> None:
        """End a process, and wait for its end: what is looked at next must not find it."""
        process = ProcessId.of(pid)
        if process is not None:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not process.alive(), 60, f"the end of {pid}", 0.01)

    def memory_mib(self, daemon: str) -> float | None:
        """What it holds; None where it does not run just now."""
        for pid in self.pids(daemon):
            with contextlib.suppress(OSError):  # it has just ended
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        return int(line.split()[1]) / 1024
        return None
