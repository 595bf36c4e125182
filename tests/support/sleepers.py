"""Machines that are sleeping processes, which a local cloud in this process starts, ends and stops."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from localcloud import agent as agents
from localcloud.cores import in_words
from localcloud.machines import Boot
from node.system import rpc
from node.system.processes import ProcessId, end_tree

TAGS = {"cluster": "t", "role": "compute", "partition": "debug"}
"""The tags of nodes."""


class Sleepers:
    """Makes such machines.

    Attributes:
        booted: machines in the order of their boots.
        done: what was done to machines: (action, host).
        cut_off: hosts without a network.
    """

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.booted: list[Boot] = []
        self.cleared: list[str] = []
        self.done: list[tuple[str, str]] = []
        self.cut_off: set[str] = set()

    def start(self, boot: Boot) -> ProcessId:
        child = subprocess.Popen(["sleep", "300"])
        self.children.append(child)
        self.booted.append(boot)
        process = ProcessId.of(child.pid)
        assert process is not None
        return process

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        return end_tree(process, 2.0)

    def clear(self, boot: Boot) -> None:
        self.cleared.append(boot.id)

    def purge(self) -> None:
        for child in self.children:
            child.kill()

    def reap(self) -> None:
        for child in self.children:
            child.poll()

    def move(self, boot: Boot, process: ProcessId, cores: Sequence[int]) -> None:
        self.done.append((f"move to {in_words(cores)}", boot.host))

    def kill(self, boot: Boot, process: ProcessId) -> None:
        self._signal("kill", boot, process, signal.SIGKILL)

    def freeze(self, boot: Boot, process: ProcessId) -> None:
        self._signal("freeze", boot, process, signal.SIGSTOP)

    def thaw(self, boot: Boot, process: ProcessId) -> None:
        self._signal("thaw", boot, process, signal.SIGCONT)

    def cut(self, boot: Boot, process: ProcessId) -> None:
        self.done.append(("cut", boot.host))
        self.cut_off.add(boot.host)

    def join(self, boot: Boot, process: ProcessId) -> None:
        self.done.append(("join", boot.host))
        self.cut_off.discard(boot.host)

    def close(self) -> None:
        # A machine that is about to boot at the end of its test would start a process that nobody ends.
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.cancel()
                thread.join(30)
        for child in self.children:
            child.kill()
            child.wait()

    def _signal(self, action: str, boot: Boot, process: ProcessId, number: signal.Signals) -> None:
        self.done.append((action, boot.host))
        os.kill(process.pid, number)
        if number is signal.SIGKILL:
            until(lambda: not process.alive())


class ServedCloud:
    """An agent in this process that answers at its socket. `restart` makes the next one."""

    def __init__(self, run: Path, maker: Sleepers) -> None:
        (run / "cloud").mkdir(parents=True, exist_ok=True)
        self.run = run
        self.maker = maker
        self.start()

    def start(self) -> None:
        self.agent = agents.Agent(self.run)
        self.server = rpc.Server(str(self.run / "cloud" / "agent.sock"), self.agent._handle)
        threading.Thread(target=self.server.serve, daemon=True).start()

    def restart(self) -> None:
        self.server.close()
        self.start()

    def call(self, method: str, **params: Any) -> Any:
        return rpc.call(str(self.run / "cloud" / "agent.sock"), method, 120.0, **params)

    def launch(self, count: int = 1, first: int = 0, **tags: str) -> list[str]:
        wish = names(count, first)
        tags = {**TAGS, **tags}
        answer = self.call(
            "launch", token=str(wish), names=wish, min_count=count, machine="local.small", tags=tags
        )
        return [m["id"] for m in answer["machines"]]

    def available_capacity(self) -> dict[str, Any]:
        asked = {"partition": "debug", "zone": None, "machine": "local.small", "gpus": 0, "count": 2}
        found: dict[str, Any] = self.call("available_capacity", **asked)
        return found

    def code(self, method: str, **params: Any) -> str | None:
        """Return the error code of a refused call, or `None` if it succeeds."""
        try:
            self.call(method, **params)
        except rpc.RpcError as error:
            return error.code
        return None


def stopped_timers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Timer]:
    """Yield the timers that start from here on. None runs: the test says when the time of each is over."""
    made: list[threading.Timer] = []

    def start(timer: threading.Timer) -> None:
        made.append(timer)

    monkeypatch.setattr(threading.Timer, "start", start)
    return made


def over(timer: threading.Timer) -> None:
    timer.function(*timer.args, **timer.kwargs)


def until(there: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(process: ProcessId) -> str:
    """Return the kernel's letter for a process's state: S sleeps, T is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def names(count: int, first: int = 0, partition: str = "debug") -> dict[str, str]:
    """Return host names of a partition -> their names in the cloud."""
    return {f"{partition}-{i}": f"t-{partition}-{i}" for i in range(first, first + count)}
