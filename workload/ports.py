"""Reserves TCP ports for a program that binds them itself, seconds later.

A port that the kernel chose and that was closed again could be given to any other program in between. So
these ports lie below the range from which the kernel chooses, where a program gets only a port that it asks
for, and below the ports that a local stack keeps for its nodes. A lock keeps two tasks of this project that
start on one machine at the same time from choosing one port. The lock is an abstract Unix socket, which ends
with the last process that has it.
"""

from __future__ import annotations

import errno
import random
import socket

from workload.errors import WorkloadError

FIRST, LAST = 10000, 16799


def reserve(chosen: random.Random | None = None) -> tuple[int, socket.socket]:
    """Return a port on which nobody listens, and the lock that keeps other tasks of this project from it.

    The lock passes on to the programs that this process becomes.

    Args:
        chosen: The source of random numbers; tests give their own.

    Raises:
        WorkloadError: Every port is in use.
    """
    ports = list(range(FIRST, LAST + 1))
    (chosen or random.SystemRandom()).shuffle(ports)
    for port in ports:
        if (lock := _lock(port)) is None:
            continue
        if _free(port):
            lock.set_inheritable(True)
            return port, lock
        lock.close()
    raise WorkloadError(f"no port between {FIRST} and {LAST} is free on this machine")


def _lock(port: int) -> socket.socket | None:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"\0slurm-stacks-port-{port}")
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return made


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # Servers set this, too: a port whose connections have just ended counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
