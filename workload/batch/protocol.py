"""What the nodes of a job tell each other: messages, events, and facts about a node.

A message is one line of JSON, on a connection that stays open for the whole job. A process that dies closes
its connection, which the other side sees at once. A machine that dies, or a network that breaks, closes
nothing. So both sides send heartbeats, and a side that is silent for too long counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
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
from workload.files import parse_json

STOPPED = 128 + signal.SIGTERM
"""The exit status of a node that was asked to end."""
DEVICES = Path("/dev")
_SIOCGIFADDR = 0x8915
LONGEST = 1 << 20
"""The most bytes of a message. The addresses of a thousand nodes take 20 KiB."""
BEAT: dict[str, Any] = {"beat": 1}
BEATS = 4
"""The number of heartbeats within the time after which a silent node counts as lost."""


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
    name = interface(address)
    return {**({"NCCL_SOCKET_IFNAME": name} if name else {}), **env}


class LostError(Exception):
    """The other side is gone or silent; the message says which."""


class Channel:
    """One connection. It sends heartbeats as long as it is open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence: float) -> None:
        self._reader, self._writer, self._silence = reader, writer, silence
        self._beat = asyncio.create_task(self._beats())

    @property
    def here(self) -> str:
        """Return this side's address."""
        return str(self._writer.get_extra_info("sockname")[0])

    @property
    def there(self) -> str:
        """Return the other side's address."""
        return str(self._writer.get_extra_info("peername")[0])

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. If the connection is lost, `receive` reports it."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            LostError: The connection is lost.
        """
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    line = await self._reader.readline()
            except TimeoutError:
                raise LostError(f"it has said nothing for {self._silence:.0f} s") from None
            except (OSError, ValueError) as error:
                raise LostError(f"the connection broke: {error}") from None
            if not line.endswith(b"\n"):
                raise LostError("it closed the connection")
            try:
                message = parse_json(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                raise LostError("it sent something that is not a message")
            if message != BEAT:
                return message

    async def close(self) -> None:
        """Send all pending messages, and close the connection."""
        self._beat.cancel()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    async def _beats(self) -> None:
        while True:
            self.send(BEAT)
            await asyncio.sleep(self._silence / BEATS)
