"""The cluster of a soak: its stack file, its Slurm, its cloud, its daemons' processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localcloud.nspawn import enter
from node.design.model import CONTAINER, PROCESS, SHARED
from node.slurm.control import Control, SlurmDown, SlurmError
from node.system import rpc
from node.system.processes import ProcessId
from operations.local import machine_access
from operations.local.run_directory import RunDirectory
from tests.support.checkout import Checkout, until
from tests.support.processes import command_line, parent
from tests.support.soak import sharing

PARTITIONS = {
    PROCESS: {"debug": 6, "wide": 6, "gpu": 3},
    CONTAINER: {"debug": 3, "wide": 3, "gpu": 2},
}
"""Machine -> partition -> its largest number of nodes. A container takes far more of this host."""
GPUS = 2
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: {debug}}}, default: true}}
          - {{name: wide, instance_type: local.small, nodes: {{max: {wide}}}{pools}}}
          - {{name: spare, instance_type: local.small, nodes: {{max: 2}}}}  # spare
          - name: gpu
            instance_type: local.medium
            accelerator: {{type: v100, count: 2}}
            nodes: {{max: {gpu}}}
        slurm: {{{slurm}}}
        local: {{isolation: {isolation}, boot_delay: 0.5}}{sections}
      slurm-stacks:benchmark: {{enabled: false}}
"""
SLURM = {
    PROCESS: "suspend_time: 4, resume_timeout: 30, slurmd_timeout: 10",
    CONTAINER: "suspend_time: 20, resume_timeout: 120, slurmd_timeout: 10, accounting: true",
}
"""Machine -> the section `slurm`. A container boots as a whole machine does, and its head can be lost."""


POOLED = "wide"
POOLS = ("spot", "rest", "dear")
"""The pools of the partition POOLED where it has some: all have as many nodes as it has else."""


def stack(isolation: str, *, shares: bool = False, pools: bool = False) -> str:
    """Return the stack file of a soak with machines of this kind.

    Args:
        shares: Whether it has accounts, QOS and preemption.
        pools: Whether a partition has pools, the first of them spot.
    """
    listed = ", ".join(f"{{name: {pool}, spot: {str(pool == 'spot').lower()}}}" for pool in POOLS)
    more = f", pools: [{listed}]" if pools else ""
    slurm = SLURM[isolation] + (sharing.SLURM if shares else "")
    sections = sharing.sections() if shares else ""
    values = {"isolation": isolation, "slurm": slurm, "sections": sections, "pools": more}
    return STACK.format(**values, **PARTITIONS[isolation])


CALM: dict[str, Any] = {
    "boot_delay": 0.5,
    "boot_spread": 0.0,
    "quota_nodes": None,
    "quota_gpus": None,
    **{f"capacity.{name}": None for name in (*PARTITIONS[PROCESS], *(f"{POOLED}/{p}" for p in POOLS))},
    "never_register": 0.0,
    "api_error": None,
    "api_latency": 0.0,
    "list_lag": 0.0,
}
"""The cloud's limits without faults."""
MARKS = {"elastic": "node.elastic.daemon", "agent": "localcloud.agent"}
HOLDER = ["sleep", "infinity"]
"""The process that holds the network of container machines (`localcloud.network`), and belongs to none."""
DAEMONS = ("slurmctld", "elastic", "agent", "munged", "slurmd")
"""The daemons of every soak. `sharing.DAEMONS` are there with accounting only."""


class _Outside(Control):
    """Slurm's commands on the controller's machine, which is the only access to a cluster of containers."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__("/etc/slurm/slurm.conf", timeout=60)
        self._directory = run

    def _run(self, command: Sequence[str], variables: Mapping[str, str]) -> bytes:
        first = self._controller()
        if first is None:
            raise SlurmDown(command, None, "there is no controller")
        environment = [f"{name}={value}" for name, value in {**self._environment, **variables}.items()]
        try:
            return super()._run([*enter(first, environment, SHARED), *command], {})
        except SlurmError as error:
            if self._controller() != first:  # it was lost in the middle of the command
                raise SlurmDown(command, error.status, error.stderr) from error
            raise

    def _controller(self) -> int | None:
        """Return the first process of a controller that has booted."""
        ready = self._directory.report("controller").get("state") == "ready"
        return machine_access.controller(self._directory) if ready else None


class SoakCluster:
    """The cluster.

    Args:
        folder: where the checkout is made.
        isolation: process | container.
        shares: whether the stack file has accounts, QOS and preemption.
        pools: whether a partition has pools.

    Attributes:
        partitions: partition -> its largest number of nodes, for a job.
        groups: partition or pool -> its largest number of machines.
        shares: as the argument.
    """

    def __init__(self, folder: Path, isolation: str, *, shares: bool = False, pools: bool = False) -> None:
        self.partitions = PARTITIONS[isolation]
        self.groups = dict(self.partitions)
        if pools:
            most = self.groups.pop(POOLED)
            self.groups |= {f"{POOLED}-{pool}": most for pool in POOLS}
        self.shares = shares
        self.checkout = Checkout(folder, stack(isolation, shares=shares, pools=pools))
        self.run = RunDirectory(self.checkout.run_directory)
        self._process = isolation == PROCESS
        self.control: Control = (
            Control(self.run.path / "etc" / "slurm.conf", timeout=20) if self._process else _Outside(self.run)
        )

    def seen(self, path: Path) -> str:
        """Return the path on machines of a file in the shared folder."""
        return str(path if self._process else Path(SHARED) / path.relative_to(self.run.shared))

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
        folder = self.run.path / "state"
        if not self._process:
            folder = Path(f"/proc/{machine_access.controller(self.run)}/root/var/spool/slurmctld")
        try:
            return (folder / "job_state").stat().st_mtime
        except OSError:
            return 0.0

    def pids(self, daemon: str) -> list[int]:
        """Return the pids of one of DAEMONS or `sharing.DAEMONS`."""
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
        lines = [(pid, argv) for pid, argv in lines if argv != HOLDER]
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
