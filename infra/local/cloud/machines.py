"""How the local cloud makes a machine. One kind so far: a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.node.processes import ProcessId, end_tree

MACHINE_VARIABLE = "SLURM_STACKS_MACHINE_ID"
CLUSTER_VARIABLE = "SLURM_STACKS_RUN"
GRACE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Boot:
    """What a machine is told at its start: what user data is on a cloud.

    Attributes:
        host: the machine's name in the cluster (`controller`, `debug-3`).
    """

    id: str
    role: str
    host: str


class Maker(Protocol):
    """A kind of machine."""

    def start(self, boot: Boot) -> ProcessId: ...

    def stop(self, process: ProcessId) -> bool:
        """False if something of the machine is still there."""
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
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, boot: Boot) -> ProcessId:
        log = self._run / "log" / f"boot-{boot.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        loader = self._run / "bucket" / "loader.py"
        init = Path(__file__).with_name("init.py")
        arguments = ["--bucket", str(self._run / "bucket"), "--code", str(self._run / "code")]
        arguments += ["--role", boot.role, "--host", boot.host]
        with log.open("ab") as output:
            child = subprocess.Popen(
                [self._python, "-I", "-S", str(init), str(loader), *arguments],
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

    def stop(self, process: ProcessId) -> bool:
        ended = end_tree(process, GRACE_SECONDS)
        self.reap()
        return ended

    def reap(self) -> None:
        """Collect ended children, so that no zombie counts as a machine."""
        for pid, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[pid]


def usable_python() -> str:
    """This interpreter without its environment: node code needs the standard library only."""
    return os.path.realpath(sys.executable)
