"""What the main node and the other nodes share: events, errors, and facts about a node."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workload.batch.settings import Settings

STOPPED = 128 + signal.SIGTERM
"""The exit status of a node that was asked to end."""
DEVICES = Path("/dev")
_SIOCGIFADDR = 0x8915


class JobError(Exception):
    """The job must end.

    Attributes:
        status: The exit status of the main node, which is the job's.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to a node.

    Attributes:
        node: The node's number.
        kind: joined | wrong | lost | ready | ended | stopping | bye on any node; refused | go | end from the
            main node.
        detail: More about the event; its keys depend on the kind.
    """

    node: int
    kind: str
    detail: dict[str, Any] = field(default_factory=dict)


class Events:
    """The queue of a node's events. SIGTERM and Ctrl-C are the event `stopping`."""

    def __init__(self, node: int) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._node = node
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.put, "stopping", {"signal": number.name})

    def put(self, kind: str, detail: dict[str, Any] | None = None, node: int | None = None) -> None:
        self._queue.put_nowait(Event(self._node if node is None else node, kind, detail or {}))

    async def next(self, seconds: float | None = None) -> Event | None:
        """Return the next event; None if there is none within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._queue.get()
        except TimeoutError:
            return None


def say(settings: Settings, text: str) -> None:
    """Print a line of the job's log."""
    print(f"slurm-stacks: node {settings.node}: {text}", file=sys.stderr, flush=True)


def versions(settings: Settings) -> dict[str, str]:
    """Return what must be the same on all nodes: name for messages -> value."""
    return {
        "image": settings.image or "unnamed",
        "code": code_digest(Path(__file__).resolve().parents[1]),
        "Python": platform.python_version(),
        "SLURM_STACKS_LAUNCH": settings.launch,
        "job": settings.job,
        "number of nodes": str(settings.nodes),
    }


def code_digest(folder: Path) -> str:
    """Return a digest of the Python files below a folder."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        total.update(f"{file.relative_to(folder)}\0".encode())
        total.update(file.read_bytes())
    return total.hexdigest()[:12]


def capacity(devices: Path = DEVICES) -> dict[str, int]:
    """Return the numbers of this node's GPUs and cores."""
    gpus = sum(path.name.removeprefix("nvidia").isdigit() for path in devices.glob("nvidia[0-9]*"))
    return {"gpus": gpus, "cores": len(os.sched_getaffinity(0))}


def interface(address: str) -> str:
    """Return the name of the network interface that has an address; empty if none has it."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def with_interface(env: Mapping[str, str], address: str) -> dict[str, str]:
    """Return the environment with NCCL's network interface, unless the environment names one already.

    Containers of AWS Batch have a second interface, which reaches only the ECS agent of the machine.
    """
    found = interface(address)
    return {**({"NCCL_SOCKET_IFNAME": found} if found else {}), **env}
