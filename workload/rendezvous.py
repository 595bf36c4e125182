"""Lets the tasks of a step find each other: each publishes its port in the shared run folder.

The published recipe uses one fixed port. A number computed from the job's id is no better: another program
may use it, and two jobs, two tasks of a node, or two "nodes" that are processes of one machine can compute
the same one. So every task reserves a port of its own, and tells the others.

The port stays reserved from that moment on. TensorFlow starts its server seconds later and binds the port
itself. If this module closed its socket just before, another program could take the port in between. Instead
both sockets have SO_REUSEPORT (TensorFlow's server by TF_GRPC_REUSE_PORT). Ours is bound and does not listen.
So the kernel gives the port to no program that asks for any port, allows TensorFlow to bind it as well, and
delivers every connection to TensorFlow, which alone listens. Where a ring connects the workers
(`workload.workers`), TensorFlow has no server, and this socket listens for the neighbour.

A user's program binds its port without SO_REUSEPORT. So its port lies below the range from which the kernel
chooses, where a program gets only a port that it asks for, and below the ports that a local stack keeps for
its nodes. A lock keeps two tasks of this project that start on one machine at the same time from choosing one
port. The lock is an abstract Unix socket, which ends with the last process that has it.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workload import files
from workload.errors import WorkloadError
from workload.slurm import Step
from workload.waiting import wait_at_most

FOLDER = ".rendezvous"
LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 10000, 16799


def reserve_port() -> socket.socket:
    """Return a bound socket that reserves its port as long as it is open. It does not listen."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("0.0.0.0", 0))
    return reserved


def reached_by(node: str, launched_from: str) -> str:
    """Return the name or address by which other tasks reach this one: its node's name.

    If nodes are processes of one host whose kernel allows them no names, it is the host's loopback address.

    Args:
        node: The name of this task's node.
        launched_from: The address of the machine that launched the step.

    Raises:
        WorkloadError: The name is not known, and the other tasks are on other hosts.
    """
    one_host = launched_from.startswith("127.")
    try:
        addresses = {str(answer[4][0]) for answer in socket.getaddrinfo(node, None)}
    except OSError as error:
        if not one_host:
            raise WorkloadError(
                f"{node} does not know its own name ({error}), so no other task would find it by that name"
            ) from error
        return LOOPBACK
    # Some networks' DNS has an address for every name. It then belongs to another machine.
    return LOOPBACK if one_host and not any(ip.startswith("127.") for ip in addresses) else node


class Rendezvous:
    """A folder in which the tasks of one step leave small notes for each other.

    A note is a file `<topic>-<rank>.json`, written once and atomically. Waiting for notes has a time limit
    and ends at once if a task leaves a `failed` note. Its error names the missing tasks.
    """

    def __init__(self, parent: Path, step: Step) -> None:
        self.step = step
        self.folder = parent / FOLDER / step.key
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob(f"*-{step.rank}.json"):
            old.unlink()  # happens only without Slurm, when every run has the same key

    def publish(self, topic: str, note: Mapping[str, Any]) -> None:
        with files.replacing(self._path(topic, self.step.rank)) as file:
            file.write(json.dumps(note).encode())

    def any(self, topic: str) -> bool:
        """Return whether any task has left a note of this topic.

        Raises:
            FileNotFoundError: The folder is gone. The chief removes it last.
        """
        self._refresh()
        return any(self.folder.glob(f"{topic}-*.json"))

    def forget_earlier_starts(self, restarts: int) -> None:
        """Remove the folders of killed earlier starts of this job, with TensorFlow's temporary files."""
        job = self.step.key.split(".")[0]
        for folder in self.folder.parent.glob(f"{job}.*"):
            start = folder.name.split(".")[1]
            if start.isdigit() and int(start) < restarts:
                shutil.rmtree(folder, ignore_errors=True)

    def over(self) -> bool:
        """Return whether the chief has written the result. It may have left already."""
        try:
            self._refresh()
        except FileNotFoundError:  # the chief, which leaves last, has removed the folder
            return True
        return self._path("done", 0).exists()

    def collect(self, topic: str, ranks: range, limit: float, what: str) -> list[dict[str, Any]]:
        """Wait for the notes of these tasks and return them in the tasks' order.

        Args:
            topic: The notes' topic.
            ranks: The tasks.
            limit: Seconds to wait.
            what: The name of what the notes hold, for messages.

        Raises:
            WorkloadError: `limit` seconds are over, or a task failed.
        """
        notes: dict[int, dict[str, Any]] = {}
        looks = itertools.count()
        spoken = time.monotonic()

        def missing() -> str:
            return ", ".join(f"{rank} ({self.step.nodes[rank]})" for rank in ranks if rank not in notes)

        def complete() -> bool:
            nonlocal spoken
            if next(looks):
                self._refresh()
            for rank in ranks:
                if rank not in notes and self._path(topic, rank).exists():
                    notes[rank] = json.loads(self._path(topic, rank).read_text(encoding="utf-8"))
            if len(notes) == len(ranks):
                return True
            if failed := sorted(self.folder.glob("failed-*.json")):
                raise WorkloadError(json.loads(failed[0].read_text(encoding="utf-8"))["message"])
            if time.monotonic() - spoken > 10:
                print(f"waiting for the {what} of task {missing()}", flush=True)
                spoken = time.monotonic()
            return False

        if not wait_at_most(complete, limit):
            raise WorkloadError(f"no {what} from task {missing()} within {limit:.0f} s")
        return [notes[rank] for rank in ranks]

    def close(self) -> None:
        """Remove the notes. The last task of the step calls this."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other steps may be using it
            self.folder.parent.rmdir()

    def _path(self, topic: str, rank: int) -> Path:
        return self.folder / f"{topic}-{rank}.json"

    def _refresh(self) -> None:
        """Change the folder, so that NFS clients drop their cached listing (kept for up to 60 s)."""
        mark = self.folder / f".look-{self.step.rank}"
        mark.touch()
        mark.unlink(missing_ok=True)


def meet(rendezvous: Rendezvous, limit: float) -> list[str]:
    """Return the `host:port` of every task of the step, in the order of their ranks.

    Raises:
        WorkloadError: A task did not appear in time, or the tasks are on other nodes than Slurm says.
    """
    step = rendezvous.step
    notes = rendezvous.collect("address", range(step.size), limit, "address")
    # Compared without order, because under a cyclic distribution the ranks lie on the nodes in another order.
    if collections.Counter(note["node"] for note in notes) != collections.Counter(step.nodes):
        raise WorkloadError(
            f"tasks on {[note['node'] for note in notes]} answered, not on {list(step.nodes)}"
        )
    return [f"{note['address']}:{note['port']}" for note in notes]


def announce(rendezvous: Rendezvous, reserved: socket.socket, env: Mapping[str, str] = os.environ) -> None:
    """Publish the address at which this task will listen."""
    node = rendezvous.step.node
    address = reached_by(node, env.get("SLURM_LAUNCH_NODE_IPADDR", ""))
    rendezvous.publish("address", {"node": node, "address": address, "port": reserved.getsockname()[1]})


def reserve_program_port(chosen: random.Random | None = None) -> tuple[int, socket.socket]:
    """Return a port on which nobody listens, and the lock that keeps other tasks of this project from it.

    The lock passes on to the programs that this process becomes.

    Args:
        chosen: The source of random numbers; tests give their own.

    Raises:
        WorkloadError: Every port is in use.
    """
    ports = list(range(FIRST_PORT, LAST_PORT + 1))
    (chosen or random.SystemRandom()).shuffle(ports)
    for port in ports:
        if (lock := _port_lock(port)) is None:
            continue
        if _port_is_free(port):
            lock.set_inheritable(True)
            return port, lock
        lock.close()
    raise WorkloadError(f"no port between {FIRST_PORT} and {LAST_PORT} is free on this machine")


def _port_lock(port: int) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0slurm-stacks-port-{port}")
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return lock


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Servers set this, too: a port whose connections have just ended counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
