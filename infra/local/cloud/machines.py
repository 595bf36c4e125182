"""How the local cloud makes a machine, and the simplest kind: a tree of processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.local.cloud.errors import CloudError
from infra.node.bootstrap import files
from infra.node.processes import (
    ProcessId,
    ancestors,
    children,
    end_all,
    end_tree,
    freeze_tree,
    having,
    kill_together,
    kill_tree,
    thaw_tree,
    with_descendants,
    with_environment,
)

CONTROLLER = "controller"
MACHINE_VARIABLE = "SLURM_STACKS_MACHINE_ID"
CLUSTER_VARIABLE = "SLURM_STACKS_RUN"
GRACE_SECONDS = 8.0
STEPDS = ("slurmstepd", "slurmstepd-wlm")
"""The program above the processes of each step of a job, on its node: Slurm's own name, and the one that
Debian's and Ubuntu's packages give it behind a link of /etc/alternatives."""
SLURMS_OWN = (*STEPDS, "srun", "salloc", "sattach", "sbatch")
"""Programs of Slurm's that stay as long as their job does, and for ever where the cluster has gone."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What a machine is told at its start: what user data is on a cloud.

    Attributes:
        host: the machine's name in the cluster (`controller`, `debug-3`).
        registers: False: nothing runs its loader, so that it never becomes a node.
    """

    id: str
    role: str
    host: str
    registers: bool = True


class Maker(Protocol):
    """A kind of machine."""

    def start(self, boot: Boot) -> ProcessId: ...

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        """End it as a shutdown does. False if something of the machine is still there."""
        ...

    def clear(self, boot: Boot) -> None:
        """End what is left of a machine whose first process died: nothing of a dead machine may live."""
        ...

    def purge(self) -> None:
        """End every machine of the cluster, known or not."""
        ...

    def reap(self) -> None:
        """Collect what has ended: called every moment."""
        ...

    # What happens to machines. Each is there and known to be alive.

    def kill(self, boot: Boot, process: ProcessId) -> None:
        """End it at once, as a power cut does: nothing of it has a moment to say goodbye."""
        ...

    def freeze(self, boot: Boot, process: ProcessId) -> None:
        """Have it stand still: nothing of it runs, and nothing ends."""
        ...

    def thaw(self, boot: Boot, process: ProcessId) -> None: ...

    def cut(self, boot: Boot, process: ProcessId) -> None:
        """Take its network away.

        Raises:
            CloudError: InvalidRequest; machines of this kind have none of their own.
        """
        ...

    def join(self, boot: Boot, process: ProcessId) -> None:
        """Give the network back that `cut` took."""
        ...


class ProcessMaker:
    """A machine is a process tree under an init of its own, on this host's network and files.

    Args:
        run: the cluster's run directory; its `bucket` is what a cluster's bucket is on a cloud.
        python: an interpreter whose path has no spaces.
    """

    def __init__(self, run: Path, python: str) -> None:
        self._run = run
        self._python = python
        # A copy: machines must start while the checkout is being moved or deleted, too.
        self._init = run / "cloud" / "init.py"
        self._init.parent.mkdir(exist_ok=True)
        for name in ("init.py", "view.py"):
            shutil.copyfile(Path(__file__).with_name(name), self._init.with_name(name))
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        # Between a child's start and its place in `_children` it would pass for an orphan.
        self._lock = threading.Lock()

    def start(self, boot: Boot) -> ProcessId:
        log = self._run / "log" / f"boot-{boot.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [str(self._run / "bucket" / "loader.py"), "--bucket", str(self._run / "bucket")]
        arguments += ["--code", str(self._run / "code"), "--role", boot.role, "--host", boot.host]
        with log.open("ab") as output, self._lock:
            child = subprocess.Popen(
                [*self._program(boot), *(arguments if boot.registers else ())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={
                    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME": os.environ.get("HOME", "/"),
                    "LANG": "C.UTF-8",
                    MACHINE_VARIABLE: boot.id,
                    CLUSTER_VARIABLE: str(self._run),
                },
                start_new_session=True,
            )
            self._children[child.pid] = child
        process = ProcessId.of(child.pid)
        if process is None:  # ended and was reaped within the call: impossible before poll()
            raise OSError(f"machine {boot.id} ended at once; see {log}")
        return process

    def _program(self, boot: Boot) -> list[str]:
        """The command line of a machine's init, in a view of this host of its own where there is one.

        The controller's daemons look no node up by name, and munged could not start in an ordinary user's
        view: there folders of root's are nobody's, which it calls insecure.
        """
        if boot.role != CONTROLLER and has_view(self._run):
            return [*view_of(self._run, boot.host, "--python"), str(self._init)]
        return [self._python, "-I", "-S", str(self._init)]

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        ended = end_tree(process, GRACE_SECONDS)
        self.reap()
        return ended

    def clear(self, boot: Boot) -> None:
        def left() -> list[int]:
            jobs = _of_jobs(self._run, boot.host)
            marked = with_environment(MACHINE_VARIABLE, boot.id)
            return with_descendants([*marked, *_stepds(jobs), *jobs])

        end_all(left)
        self.reap()

    def purge(self) -> None:
        end_all(lambda: of_cluster(self._run))
        self.reap()

    def kill(self, boot: Boot, process: ProcessId) -> None:
        kill_tree(process)
        self.clear(boot)

    def freeze(self, boot: Boot, process: ProcessId) -> None:
        freeze_tree(process)

    def thaw(self, boot: Boot, process: ProcessId) -> None:
        thaw_tree(process)

    def cut(self, boot: Boot, process: ProcessId) -> None:
        raise CloudError(
            "InvalidRequest",
            f"{boot.host} has no network of its own: machines of `machines: process` share this host's; "
            "`machines: container` in the stack file makes machines that can be cut off",
        )

    def join(self, boot: Boot, process: ProcessId) -> None:
        self.cut(boot, process)

    def reap(self) -> None:
        """Collect ended children; end orphans, which come to the agent only when their machine's init died.

        (The agent is a subreaper. A job's processes have environments of their own, so that the machine's
        mark does not find them.)
        """
        with self._lock:
            for pid, child in list(self._children.items()):
                if child.poll() is not None:
                    del self._children[pid]
            orphans = [pid for pid in children(os.getpid()) if pid not in self._children]
            # All at one moment: the end of one step's slurmstepd would end the srun that waits for it, in a
            # script whose own slurmstepd then reported a job that failed.
            kill_together(with_descendants(orphans))
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def has_view(run: Path) -> bool:
    """Whether a process machine of this cluster has a view of its own (`view.py`)."""
    try:
        possible = json.loads((run / "cloud" / "view.json").read_text())["possible"]
        return bool(possible) and (run / "cloud" / "hosts").exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def set_view(run: Path, *, possible: bool) -> None:
    """Remember it, for machines that start from now on."""
    files.place(run / "cloud" / "view.json", json.dumps({"possible": possible}).encode())


def view_of(run: Path, host: str, how: str) -> list[str]:
    """The command that runs a program in a machine's view.

    Args:
        how: `--python` runs a Python file, `--exec` any program.
    """
    cloud = run / "cloud"
    return [str(run / "python3"), "-I", "-S", str(cloud / "view.py"), str(cloud), host, how]


def of_cluster(run: Path) -> list[int]:
    """Pids of all that belongs to a cluster: the agent, machines, jobs, clients that wait for its jobs.

    Args:
        run: the cluster's run directory.
    """
    return with_descendants([*with_environment(CLUSTER_VARIABLE, str(run)), *_of_jobs(run)])


def _of_jobs(run: Path, host: str | None = None) -> list[int]:
    """Pids of jobs' processes, of one machine or of all: they carry Slurm's marks and not the machine's."""
    conf = f"SLURM_CONF={run}/etc/slurm.conf".encode()
    node = b"SLURMD_NODENAME=" + (os.fsencode(host) if host else b"")

    def wanted(pid: int, environment: list[bytes]) -> bool:
        if conf not in environment:
            return False
        if host is not None:
            return node in environment
        ours = any(entry.startswith(node) for entry in environment)
        return ours or Path(f"/proc/{pid}/exe").readlink().name in SLURMS_OWN

    return having(wanted)


def _stepds(jobs: list[int]) -> list[int]:
    """The slurmstepds above jobs' processes.

    Each has written its title over its environment, so that no mark finds it. Were it left when its job's
    processes are killed, it would report a job that failed, where a machine died.
    """
    found: dict[int, None] = {}
    for pid in jobs:
        for above in ancestors(pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{above}/exe").readlink().name in STEPDS:
                    found[above] = None
    return list(found)


def usable_python() -> str:
    """This interpreter without its environment: node code needs the standard library only."""
    return os.path.realpath(sys.executable)
