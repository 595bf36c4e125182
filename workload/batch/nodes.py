"""The two kinds of nodes of a job.

The main node waits for the others, starts the program on all, and decides how the job ends. Each of the
others registers, starts the program when told, and ends with the main one.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.batch import mpi, program
from workload.batch.mpi import Sshd
from workload.batch.program import GRACE_SECONDS, Process, described
from workload.batch.protocol import (
    LONGEST,
    STOPPED,
    Channel,
    Event,
    Events,
    JobError,
    LostError,
    capacity,
    say,
    versions,
    with_interface,
)
from workload.batch.settings import MPI, Settings, check_folders
from workload.errors import WorkloadError
from workload.rendezvous import reserve_program_port

LOOPBACK = "127.0.0.1"
SAY_SECONDS = 30.0
"""The time between two log lines that name the missing nodes."""
LEAVE_SECONDS = 60.0
"""How long the other nodes may go on after the main node's program has succeeded. TensorFlow's workers
sometimes stall after their last step."""
BYE_SECONDS = GRACE_SECONDS + 5.0
AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Member:
    """Another node that has registered.

    Attributes:
        channel: The connection to it.
        hello: The message with which it registered.
    """

    channel: Channel
    hello: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a job whose program has succeeded.

    Attributes:
        gpus: The GPUs of each node, in the order of the ranks.
        seconds_waited: From the start of the main node until all were there.
        seconds_total: From the start of the main node until the program's end.
    """

    gpus: tuple[int, ...]
    seconds_waited: float
    seconds_total: float


class MainNode:
    """The main node's part of the job.

    Args:
        settings: The main node's settings.
        command: The program and its arguments.
        env: The main node's environment variables.
    """

    def __init__(self, settings: Settings, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._settings, self._command, self._env = settings, command, env
        self._versions = versions(settings)
        self._members: dict[int, Member] = {}
        self._connections: set[Channel] = set()
        self._running: Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone: set[int] = set()
        self._started = time.monotonic()
        self._own = capacity()

    async def run(self) -> tuple[int, Outcome | None]:
        """Run the job. Return its exit status, and its outcome if the program has succeeded."""
        events = Events(self._settings.node)
        outcome, why = None, "the program has succeeded"
        status = 0
        with tempfile.TemporaryDirectory(prefix="slurm-stacks-") as folder:
            try:
                outcome = await self._job(events, Path(folder))
            except JobError as error:
                status, why = error.status, str(error)
            except WorkloadError as error:
                status, why = 1, str(error)
            except Exception as error:
                traceback.print_exc()
                status, why = 1, f"{type(error).__name__}: {error}"
            say(self._settings, why)
            await self._end(events, status, why)
        return status, outcome

    async def _job(self, events: Events, folder: Path) -> Outcome:
        settings = self._settings
        server = None
        if settings.nodes > 1:
            server = await self._serve(events)
        try:
            await self._gather(events)
            waited = time.monotonic() - self._started
            if settings.launch == MPI:
                awaited = await self._mpirun(events, folder)
            else:
                awaited = await self._processes(events)
            await self._watch(events, awaited)
        finally:
            if server is not None:
                server.close()
        each = {settings.node: self._own["gpus"], **{n: m.hello["gpus"] for n, m in self._members.items()}}
        ordered = tuple(each[node] for node in sorted(each, key=settings.rank))
        return Outcome(ordered, waited, time.monotonic() - self._started)

    async def _serve(self, events: Events) -> asyncio.Server:
        settings = self._settings

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            channel = Channel(reader, writer, settings.silence)
            self._connections.add(channel)
            try:
                await self._welcome(channel, events)
            finally:
                self._connections.discard(channel)
                await channel.close()

        try:
            return await asyncio.start_server(
                welcome, settings.address or "0.0.0.0", settings.port, limit=LONGEST, backlog=1024
            )
        except OSError as error:
            raise WorkloadError(
                f"port {settings.port}, at which the other nodes register, cannot be used: {error.strerror}. "
                "Set SLURM_STACKS_PORT to another one in the job definition"
            ) from error

    async def _welcome(self, channel: Channel, events: Events) -> None:
        node = None
        try:
            hello = await channel.receive()
            if (refusal := self._refusal(hello)) is not None:
                channel.send({"kind": "refused", "why": refusal})
                if refusal.fatal:
                    events.put("wrong", {"why": str(refusal)}, hello["node"])
                return
            node = int(hello["node"])
            self._members[node] = Member(channel, hello)
            events.put("joined", node=node)
            while True:
                message = await channel.receive()
                events.put(str(message.get("kind")), message, node)
        except LostError as error:
            if node is not None:
                events.put("lost", {"why": str(error)}, node)

    def _refusal(self, hello: dict[str, Any]) -> Refusal | None:
        settings, node = self._settings, hello.get("node")
        theirs = hello.get("versions")
        if hello.get("kind") != "hello" or not isinstance(node, int) or not isinstance(theirs, dict):
            return Refusal("this is the main node of a job of AWS Batch")
        if theirs.get("job") != settings.job:
            # Such a node may belong to a job that was given this address. It says nothing about this job.
            return Refusal(f"this is job {settings.job}")
        if node == settings.main or not 0 <= node < settings.nodes:
            return Refusal(f"there is no such node beside the main one: {node}")
        if node in self._members:
            return Refusal(f"node {node} has registered already, from {self._members[node].hello['address']}")
        if problem := hello.get("problem"):
            return Refusal(f"node {node} ({hello.get('address')}) cannot take part: {problem}", fatal=True)
        if hello.get("gpus") != self._own["gpus"]:
            return Refusal(
                f"node {node} ({hello.get('address')}) has another number of GPUs than the main node: "
                f"{hello.get('gpus')}, and here {self._own['gpus']}. Look whether one of a machine failed",
                fatal=True,
            )
        differ = [name for name in self._versions if theirs.get(name) != self._versions[name]]
        if differ:
            both = [f"{name}: {theirs.get(name)}, and here {self._versions[name]}" for name in differ]
            return Refusal(
                f"node {node} ({hello.get('address')}) runs something else than the main node "
                f"({', '.join(both)}). Give all nodes of the job definition one image, by its digest, and "
                "the same variables",
                fatal=True,
            )
        return None

    async def _gather(self, events: Events) -> None:
        """Wait for all nodes."""
        settings = self._settings
        end = self._started + settings.wait
        spoken = time.monotonic()
        while missing := self._missing():
            now = time.monotonic()
            if now >= end:
                raise JobError(
                    f"{_named(missing)} of {settings.nodes} did not register within {settings.wait:.0f} s. "
                    "Look at their logs: their machines may be missing, or still pull the image; or the "
                    "security group keeps the job's nodes from each other"
                )
            if now - spoken >= SAY_SECONDS:
                present = settings.nodes - len(missing)
                say(settings, f"waiting for {_named(missing)} of {settings.nodes}; {present} are here")
                spoken = now
            event = await events.next(min(end - now, SAY_SECONDS))
            if event is not None:
                self._check(event)
                if event.kind == "joined":
                    say(settings, f"{self._name(event.node)} is here")
        if settings.nodes > 1:
            say(settings, f"all nodes are here: {', '.join(self._addresses())}")

    def _missing(self) -> list[int]:
        return [n for n in range(self._settings.nodes) if n != self._settings.main and n not in self._members]

    def _check(self, event: Event) -> None:
        """End the job if the event is one that ends it at any time.

        Raises:
            JobError: The job is over.
        """
        if event.kind == "wrong":
            raise JobError(event.detail["why"])
        if event.kind == "lost":
            self._gone.add(event.node)
            raise JobError(f"{self._name(event.node)} is lost: {event.detail['why']}")
        if event.kind == "stopping":
            raise JobError(
                f"{self._name(event.node)} was asked to end ({event.detail.get('signal')})", STOPPED
            )
        if event.kind == "ended" and event.detail["status"]:
            status = int(event.detail["status"])
            raise JobError(f"the program on {self._name(event.node)} {described(status)}", status)

    def _name(self, node: int) -> str:
        if node == self._settings.main:
            return "the main node"
        return (
            f"node {node} ({self._members[node].hello['address']})"
            if node in self._members
            else f"node {node}"
        )

    def _address(self) -> str:
        """Return the main node's address, at which the other nodes reached it."""
        address = next((member.channel.here for member in self._members.values()), LOOPBACK)
        return self._settings.address or address

    def _addresses(self) -> list[str]:
        """Return the nodes' addresses in the order of their ranks."""
        others = [self._members[node].hello["address"] for node in sorted(self._members)]
        return [self._address(), *others]

    async def _processes(self, events: Events) -> set[int]:
        """Start the program on every node. Return the nodes whose programs must succeed."""
        settings, address = self._settings, self._address()
        gpus = self._own["gpus"] * settings.nodes
        if settings.mpi_ranks not in (None, gpus):
            raise WorkloadError(
                f"MPI_GPUS is {settings.mpi_ranks}, and the GPUs of all nodes are {gpus}. Look at the GPUs "
                "that the job definition asks for, or leave MPI_GPUS out"
            )
        (port, lock), (master_port, master_lock) = reserve_program_port(), reserve_program_port()
        # The locks hold until this process ends.
        self._locks = (lock, master_lock)
        others = [self._members[node].hello for node in sorted(self._members)]
        addresses = [f"{address}:{port}", *(f"{hello['address']}:{hello['port']}" for hello in others)]
        master = f"{address}:{master_port}"
        for member in self._members.values():
            member.channel.send({"kind": "go", "addresses": addresses, "master": master})
        env = program.environment(settings, self._env, addresses, master, address)
        await self._start(self._command, env, events)
        return set(range(settings.nodes))

    async def _mpirun(self, events: Events, folder: Path) -> set[int]:
        """Start mpirun. Return the main node, the only one whose program must succeed."""
        settings = self._settings
        key = await asyncio.to_thread(mpi.make_key, folder / "key")
        slots = {self._address(): self._own["gpus"] or self._own["cores"]}
        for node in sorted(self._members):
            hello = self._members[node].hello
            slots[hello["address"]] = hello["gpus"] or hello["cores"]
        hosts = {member.hello["address"]: member.hello["host_key"] for member in self._members.values()}
        config = mpi.client_config(folder, hosts, settings.ssh_port)
        env = with_interface(self._env, self._address()) | program.results(settings)
        command = mpi.command(settings, slots, folder, config, env, self._command)
        for member in self._members.values():
            member.channel.send({"kind": "go", "key": key})
        waiting = set(self._members)
        while waiting:
            event = await events.next()
            assert event is not None
            self._check(event)
            if event.kind == "ready":
                waiting.discard(event.node)
        await self._start(command, env, events)
        return {settings.main}

    async def _start(self, command: Sequence[str], env: Mapping[str, str], events: Events) -> None:
        try:
            self._running = running = await program.start(self._settings, command, env)
        except WorkloadError as error:
            raise JobError(str(error), program.NOT_STARTED) from error

        async def watch() -> None:
            events.put("ended", {"status": await running.wait()})

        self._tasks |= {asyncio.create_task(watch()), asyncio.create_task(program.watch_gpus(self._settings))}

    async def _watch(self, events: Events, awaited: set[int]) -> None:
        """Wait until the programs of all awaited nodes have succeeded."""
        main = self._settings.main
        while awaited:
            event = await events.next(None if main in awaited else LEAVE_SECONDS)
            if event is None:
                say(
                    self._settings,
                    f"{_named(sorted(awaited))} stalled after the main node's program succeeded",
                )
                return
            if event.kind == "lost" and event.node not in awaited and main not in awaited:
                continue  # its part is done
            self._check(event)
            if event.kind == "ended":
                awaited.discard(event.node)

    async def _end(self, events: Events, status: int, why: str) -> None:
        """End the program and the other nodes, and wait as long as AWS Batch would wait."""
        for member in self._members.values():
            member.channel.send({"kind": "end", "status": status, "why": why})
        end = time.monotonic() + BYE_SECONDS
        if self._running is not None:
            await self._running.end()
        waiting = self._members.keys() - self._gone
        while waiting and (left := end - time.monotonic()) > 0:
            event = await events.next(left)
            if event is not None and event.kind in ("bye", "lost"):
                waiting.discard(event.node)
        if waiting:
            say(self._settings, f"left without {_named(sorted(waiting))}")
        for channel in list(self._connections):
            await channel.close()
        for task in self._tasks:
            task.cancel()


class Refusal(str):
    """Why a node may not take part."""

    fatal: bool

    def __new__(cls, text: str, *, fatal: bool = False) -> Refusal:
        refusal = super().__new__(cls, text)
        refusal.fatal = fatal
        return refusal


def _named(nodes: Sequence[int]) -> str:
    """Return `node 3` or `nodes 3 and 7`."""
    names = [str(node) for node in nodes]
    if len(names) == 1:
        return f"node {names[0]}"
    return f"nodes {', '.join(names[:-1])} and {names[-1]}"


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
        port, lock = reserve_program_port()
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
        self._tasks.append(asyncio.create_task(program.watch_gpus(self._settings)))
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
