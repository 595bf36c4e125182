"""A node that is not the main one: it registers, starts the program when told, and ends with the main one."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workload import ports
from workload.batch import gpus, program
from workload.batch.mpi import Sshd
from workload.batch.node import STOPPED, Events, JobError, capacity, say, versions
from workload.batch.process import Process
from workload.batch.settings import MPI, Settings, check_folders
from workload.batch.wire import LONGEST, Channel, LostError
from workload.errors import WorkloadError

AGAIN_SECONDS = 0.5


class Worker:
    """One node's part of the job.

    Args:
        settings: This node's settings.
        command: The program and its arguments, for a job without MPI.
        env: This node's environment variables.
    """

    def __init__(self, settings: Settings, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._settings, self._command, self._env = settings, command, env
        self._sshd: Sshd | None = None
        self._program: Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Take part in the job until its end, and return this node's exit status."""
        events = Events(self._settings.node)
        channel: Channel | None = None
        try:
            with tempfile.TemporaryDirectory(prefix="slurm-stacks-") as folder:
                channel = await self._connect(events)
                return await self._part(channel, events, Path(folder))
        except JobError as error:
            say(self._settings, str(error))
            return error.status
        finally:
            for task in self._tasks:
                task.cancel()
            if channel is not None:
                await channel.close()

    async def _connect(self, events: Events) -> Channel:
        settings = self._settings
        assert settings.main_address is not None
        end = time.monotonic() + settings.wait
        say(settings, f"looking for the main node, {settings.main_address}, at port {settings.port}")
        local = (settings.address, 0) if settings.address else None
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    settings.main_address, settings.port, limit=LONGEST, local_addr=local
                )
                return Channel(reader, writer, settings.silence)
            except OSError as error:
                problem = error.strerror or str(error)
            if time.monotonic() > end:
                raise JobError(
                    f"the main node, {settings.main_address}, did not answer at port {settings.port} within "
                    f"{settings.wait:.0f} s ({problem}). Look at its log, and whether the security group "
                    "lets the job's nodes reach each other"
                )
            if (event := await events.next(AGAIN_SECONDS)) is not None:
                raise JobError(
                    f"asked to end ({event.detail['signal']}) before the main node answered", STOPPED
                )

    async def _part(self, channel: Channel, events: Events, folder: Path) -> int:
        settings = self._settings
        address = settings.address or channel.here
        hello: dict[str, Any] = {"kind": "hello", "node": settings.node, "address": address, **capacity()}
        hello["versions"] = versions(settings)
        port, lock = ports.reserve()
        hello["port"] = port
        with lock:
            try:
                check_folders(settings)
                if settings.launch == MPI:
                    self._sshd = Sshd(folder, address, settings.ssh_port)
                    await self._sshd.start()
                    hello["host_key"] = self._sshd.host_key
            except WorkloadError as error:  # the main node must hear of it, or it would wait for this node
                hello["problem"] = str(error)
            channel.send(hello)
            self._tasks.append(asyncio.create_task(self._listen(channel, events)))
            try:
                return await self._follow(channel, events, address)
            finally:
                if self._program is not None:
                    await self._program.end()
                if self._sshd is not None:
                    await self._sshd.end()
                channel.send({"kind": "bye"})

    async def _listen(self, channel: Channel, events: Events) -> None:
        try:
            while True:
                message = await channel.receive()
                events.put(str(message.get("kind")), message, self._settings.main)
        except LostError as error:
            events.put("lost", {"why": str(error)}, self._settings.main)

    async def _follow(self, channel: Channel, events: Events, address: str) -> int:
        while True:
            event = await events.next()
            assert event is not None
            if event.kind == "refused":
                raise JobError(f"the main node refused this node: {event.detail['why']}")
            if event.kind == "lost":
                raise JobError(f"the main node is lost: {event.detail['why']}")
            if event.kind == "stopping":
                channel.send({"kind": "stopping", "signal": event.detail["signal"]})
                raise JobError(f"asked to end ({event.detail['signal']})", STOPPED)
            if event.kind == "end":
                say(self._settings, f"the main node ends the job: {event.detail['why']}")
                return int(event.detail["status"])
            if event.kind == "go":
                await self._go(channel, event.detail, address)

    async def _go(self, channel: Channel, detail: dict[str, Any], address: str) -> None:
        self._tasks.append(asyncio.create_task(gpus.watch(self._settings)))
        if self._sshd is not None:
            self._sshd.authorize(detail["key"])
            channel.send({"kind": "ready"})
            return
        settings = self._settings
        env = program.environment(settings, self._env, detail["addresses"], detail["master"], address)
        try:
            self._program = await program.start(settings, self._command, env)
        except WorkloadError as error:
            say(settings, str(error))
            channel.send({"kind": "ended", "status": program.NOT_STARTED})
            return
        self._tasks.append(asyncio.create_task(self._watch(self._program, channel)))

    async def _watch(self, running: Process, channel: Channel) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            channel.send({"kind": "ended", "status": await running.wait()})
