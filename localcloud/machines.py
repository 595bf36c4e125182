"""How the local cloud runs a machine, and the simplest kind of machine: a process tree."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from localcloud.cores import move, put_on, running_on
from localcloud.forked_machines import ForkServer
from localcloud.hosts_namespace import SLURM, TMP_OPTION
from node.bootstrap.job_leftovers import STEPDS
from node.system import files, foreign, subprocesses
from node.system.processes import (
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


class CloudError(Exception):
    """The cloud refused a call. `code` is one of those that `node.elastic.drivers.local` classifies."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


CONTROLLER, COMPUTE, LOCALHOST = "controller", "compute", "localhost"
MACHINE_VARIABLE = "SLURM_STACKS_MACHINE_ID"
CLUSTER_VARIABLE = "SLURM_STACKS_RUN"
GRACE_SECONDS = 8.0
SLURMS_OWN = (*STEPDS, "srun", "salloc", "sattach", "sbatch")
"""Slurm's programs that run as long as their job; without a cluster they would run for ever."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What a machine is told when it starts, like user data on a cloud.

    Attributes:
        host: The machine's name in the cluster (`controller`, `debug-3`).
        registers: Whether the machine runs its loader; without it, the machine never becomes a node.
        cores: The cores of this host on which the machine runs; empty means any.
    """

    id: str
    role: str
    host: str
    registers: bool = True
    cores: tuple[int, ...] = ()


class MachineRuntime(Protocol):
    """What starts and stops machines of one kind."""

    def start(self, boot: Boot) -> ProcessId: ...

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        """Shut the machine down, and return False if processes of it are left."""
        ...

    def clear(self, boot: Boot) -> None:
        """End and remove everything that is left of a machine whose first process has died."""
        ...

    def purge(self) -> None:
        """End every machine of the cluster, also machines without a record."""
        ...

    def reap(self) -> None:
        """Collect ended processes. The agent calls this often."""
        ...

    def move(self, boot: Boot, process: ProcessId, cores: Sequence[int]) -> None:
        """Move a machine that runs from its cores, `boot.cores`, to others, as many."""
        ...

    # The faults. They are called for machines that run.

    def kill(self, boot: Boot, process: ProcessId) -> None:
        """End the machine as a power loss does: no process of it can react."""
        ...

    def freeze(self, boot: Boot, process: ProcessId) -> None:
        """Freeze all processes of the machine: none runs and none ends."""
        ...

    def thaw(self, boot: Boot, process: ProcessId) -> None: ...

    def cut(self, boot: Boot, process: ProcessId) -> None:
        """Cut the machine off from the network.

        Raises:
            CloudError: `InvalidRequest` if machines of this kind have no network of their own.
        """
        ...

    def join(self, boot: Boot, process: ProcessId) -> None:
        """Reconnect a machine that was cut off."""
        ...


class ProcessRuntime:
    """The runtime of a machine as a process tree under its own init, with this host's network and files.

    Args:
        run: The cluster's run directory; its folder `bucket` serves as the cluster's bucket.
        python: An interpreter whose path has no spaces.
    """

    def __init__(self, run: Path, python: str) -> None:
        self._run = run
        self._python = python
        # These are copies, because machines must also start after the checkout was moved or deleted.
        self._init = run / "cloud" / "init.py"
        self._init.parent.mkdir(exist_ok=True)
        for source, target in (("init.py", "init.py"), ("hosts_namespace.py", "hosts_namespace.py")):
            shutil.copyfile(Path(__file__).with_name(source), self._init.with_name(target))
        self._tmp = TemporaryFolders(run)
        self._environment = {
            "PATH": subprocesses.SEARCH,
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            CLUSTER_VARIABLE: str(run),
        }
        self._fork_server = ForkServer(run, python, self._environment)
        self._children: list[ProcessId] = []
        self._may_have_orphans = True
        # A child that is started and not yet in `_children` would look like an orphan.
        self._lock = threading.Lock()

    def start(self, boot: Boot) -> ProcessId:
        log = self._run / "log" / f"boot-{boot.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if boot.role == COMPUTE:
            self._tmp.make(boot)
        arguments = [str(self._run / "bucket" / "loader.py"), "--bucket", str(self._run / "bucket")]
        arguments += ["--code", str(self._run / "code"), "--role", boot.role, "--host", boot.host]
        command = [*self._program(boot), *(arguments if boot.registers else ())]
        environment = {**self._environment, MACHINE_VARIABLE: boot.id}
        with log.open("ab") as output, self._lock:
            process = self._forked(boot, command, environment, output)
            if process is None:
                process = self._started(boot, command, environment, output)
            self._children.append(process)
        return process

    def _forked(
        self, boot: Boot, command: list[str], environment: dict[str, str], output: IO[bytes]
    ) -> ProcessId | None:
        """Start a node by the fork server. `None` means that it has to be started without."""
        # The server has imported a node's boot. A head boots when its cluster may have no code to import yet.
        if boot.role != COMPUTE:
            return None
        process = self._fork_server.fork(command, environment, output, lambda pid: put_on(pid, boot.cores))
        # What a server that fails has begun comes to the agent, and ends.
        self._may_have_orphans |= process is None
        return process

    def _started(
        self, boot: Boot, command: list[str], environment: dict[str, str], output: IO[bytes]
    ) -> ProcessId:
        # The machine has its cores from its first moment on, so that a later move finds all of it on them.
        with running_on(boot.cores):
            child = subprocesses.start(command, environment, output)
        # `reap` collects the child. Without this line the Popen object would collect it unnoticed.
        child.returncode = 0
        process = ProcessId.of(child.pid)
        if process is None:  # ended and was reaped within the call: impossible before `reap`
            raise OSError(f"machine {boot.id} ended at once; see {output.name}")
        return process

    def _program(self, boot: Boot) -> list[str]:
        """Return the command line of a machine's init, in its own hosts namespace if there is one.

        The controller is called localhost there, because its daemons listen on the address of that name, and
        jobs' programs connect from 127.0.0.1, where the daemons call back.
        """
        if has_hosts_namespace(self._run):
            name = LOCALHOST if boot.role == CONTROLLER else boot.host
            tmp = machine_tmp(self._run, boot.host) if boot.role == COMPUTE else None
            return [*namespace_command(self._run, name, "--python", tmp), str(self._init)]
        return [self._python, "-I", "-S", str(self._init)]

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        ended = end_tree(process, GRACE_SECONDS)
        self.reap()
        if ended:
            self._tmp.remove(boot)
        return ended

    def clear(self, boot: Boot) -> None:
        def left() -> list[int]:
            jobs = _of_jobs(self._run, boot.host)
            marked = with_environment(MACHINE_VARIABLE, boot.id)
            return with_descendants([*marked, *_stepds(jobs), *jobs])

        end_all(left)
        self.reap()
        self._tmp.remove(boot)

    def purge(self) -> None:
        end_all(lambda: pids_of_cluster(self._run))
        self.reap()

    def move(self, boot: Boot, process: ProcessId, cores: Sequence[int]) -> None:
        move(lambda: with_descendants([process.pid]), boot.cores, cores)

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
            f"{boot.host} has no network of its own: machines of `isolation: process` share this host's; "
            "`isolation: container` in the stack file makes machines that can be cut off",
        )

    def join(self, boot: Boot, process: ProcessId) -> None:
        self.cut(boot, process)

    def reap(self) -> None:
        """Collect ended children, and kill orphans.

        The agent is a subreaper, and orphans come to it only when their machine's init has died. A job's
        processes have their own environment, so the machine's variable does not find them. A look for orphans
        reads every process of this host, so there is none from the last orphan's end to the next init's.
        """
        with self._lock:
            living = [child for child in self._children if not _has_ended(child)]
            ended = len(living) < len(self._children)
            self._children = living
            server = self._fork_server.pid()
            if not (ended or self._may_have_orphans):
                return
            ours = {server, *(child.pid for child in living)}
            orphans = [pid for pid in children(os.getpid()) if pid not in ours]
            # All are killed together. Otherwise the end of one step's slurmstepd would end the srun that
            # waits for it, and the slurmstepd of the batch script would report a failed job.
            kill_together(with_descendants(orphans))
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            # A process that one of them has just started comes to the agent with its parent's end.
            self._may_have_orphans = bool(orphans)


def _has_ended(child: ProcessId) -> bool:
    """Return whether a child of this process has ended, and collect it."""
    try:
        return os.waitpid(child.pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return not child.alive()  # a forked machine is our child as soon as its parent has ended


class TemporaryFolders:
    """The folders of compute machines' temporary files. A machine's begins empty and ends with it.

    Args:
        run: The cluster's run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        # A machine that has died is cleared when the next one of its name may be there.
        self._owners: dict[str, str] = {}

    def make(self, boot: Boot) -> None:
        folder = machine_tmp(self._run, boot.host)
        with self._lock:
            self._owners[boot.host] = boot.id
            former = self._set_aside(boot)
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
        files.remove(former)

    def remove(self, boot: Boot) -> None:
        with self._lock:
            if self._owners.get(boot.host, boot.id) != boot.id:
                return
            former = self._set_aside(boot)
        files.remove(former)

    def _set_aside(self, boot: Boot) -> Path:
        """Rename the folder that is there, if any. It may take long to remove."""
        folder = machine_tmp(self._run, boot.host)
        former = folder.with_name(f".{boot.host}-{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(former)
        return former


def has_hosts_namespace(run: Path) -> bool:
    """Return whether process machines of this cluster have their own /etc/hosts (`hosts_namespace.py`)."""
    return hosts_namespace_possible(run) and (run / "cloud" / "hosts").exists()


def hosts_namespace_possible(run: Path) -> bool:
    """Return whether `set_hosts_namespace` has saved that a hosts namespace is possible."""
    try:
        return bool(foreign.record(run / "cloud" / "hosts_namespace.json")["possible"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def set_hosts_namespace(run: Path, *, possible: bool) -> None:
    """Save whether a hosts namespace is possible, for machines that start from now on."""
    files.write(run / "cloud" / "hosts_namespace.json", json.dumps({"possible": possible}).encode())


def namespace_command(run: Path, host: str, how: str, tmp: Path | None = None) -> list[str]:
    """Return the command that runs a program in a machine's hosts namespace.

    Args:
        how: `--python` runs a Python file, `--exec` any program.
        tmp: The folder that becomes /tmp; `None` leaves the host's.
    """
    cloud = run / "cloud"
    options = [f"{TMP_OPTION}{tmp}"] if tmp is not None else []
    program = str(cloud / "hosts_namespace.py")
    return [str(run / "python3"), "-I", "-S", program, str(cloud), host, *options, how]


def machine_tmp(run: Path, host: str) -> Path:
    """Return the folder that is a compute machine's /tmp if there are namespaces."""
    return run / "tmp" / host


def pids_of_cluster(run: Path) -> list[int]:
    """Find all processes of a cluster: the agent, machines, jobs, and clients that wait for jobs.

    Args:
        run: The cluster's run directory.

    Returns:
        Their pids.
    """
    return with_descendants([*with_environment(CLUSTER_VARIABLE, str(run)), *_of_jobs(run)])


def _of_jobs(run: Path, host: str | None = None) -> list[int]:
    """Find the processes of jobs, by Slurm's environment variables.

    Args:
        host: The machine that runs them; `None` means every machine.

    Returns:
        Their pids. Jobs do not inherit the machine's own variables.
    """
    file = run / "etc" / "slurm.conf"
    conf = f"SLURM_CONF={file}".encode()
    node = b"SLURMD_NODENAME=" + (os.fsencode(host) if host else b"")

    def wanted(pid: int, environment: list[bytes]) -> bool:
        named = conf in environment
        if host is not None:
            return named and node in environment
        if named and any(entry.startswith(node) for entry in environment):
            return True
        if Path(f"/proc/{pid}/exe").readlink().name not in SLURMS_OWN:
            return False
        return named or (not any(e.startswith(b"SLURM_CONF=") for e in environment) and _finds(pid, file))

    return having(wanted)


def _finds(pid: int, file: Path) -> bool:
    """Return whether a process sees this slurm.conf where Slurm looks by default (`hosts_namespace.py`)."""
    seen = Path(f"/proc/{pid}/root{SLURM}", file.name)
    return seen.exists() and seen.samefile(file)


def _stepds(jobs: list[int]) -> list[int]:
    """Find the slurmstepds above the processes of jobs.

    A slurmstepd overwrites its environment with its title, so no variable finds it. If it survived the
    processes of its job, it would report a failed job although the machine died.
    """
    stepds: dict[int, None] = {}
    for pid in jobs:
        for above in ancestors(pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{above}/exe").readlink().name in STEPDS:
                    stepds[above] = None
    return list(stepds)


def base_python() -> str:
    """Return this interpreter outside of its venv: node code needs only the standard library."""
    return os.path.realpath(sys.executable)
