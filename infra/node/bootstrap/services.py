"""Starting and keeping daemons: by systemd on a machine of its own, by the machine's init in process mode."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from infra.node.bootstrap.accounts import start_as
from infra.node.processes import descendants

RESTART_PAUSE_SECONDS = 1.0
STOP_SECONDS = 6.0
BEFORE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon that runs in the foreground of its keeper.

    Attributes:
        log: where its output goes beside its own log file.
        user: who runs it, with that user's groups; None for the keeper itself.
        before: a program that the keeper runs, as itself, before it starts the service again; should it
            fail, the service starts all the same.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    before: str | None = None


class Services(Protocol):
    def start(self, service: Service) -> int:
        """Start it and return its pid."""
        ...

    def stop(self, name: str) -> None:
        """End a service that an earlier boot of this machine has left running, if there is one."""
        ...

    def tend(self) -> None:
        """Start again what has died, if its pause is over: for who waits for that before `keep`."""
        ...

    def keep(self) -> None:
        """Stay with the services for the machine's life; returns at once where systemd does that."""
        ...


def _run_before(program: str, log: Path) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), log.open("ab") as output:
        subprocess.run(
            [program], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
            timeout=BEFORE_SECONDS, check=False,
        )  # fmt: skip


class InitServices:
    """Children of the machine's first process: restarted when they die, ended in reverse order.

    For a process that is the subreaper of all below it (`infra.local.cloud.init`).
    """

    def __init__(self) -> None:
        self._running: dict[int, Service] = {}
        # In the order of their first start, which is that of who needs whom.
        self._names: list[str] = []
        self._restarts: list[tuple[float, Service]] = []
        self._starting = self._told = self._stopping = False
        # From the first service on: a machine that is ended during its boot takes its services along.
        signal.signal(signal.SIGTERM, self._on_term)

    def start(self, service: Service) -> int:
        service.log.parent.mkdir(parents=True, exist_ok=True)
        identity = start_as(service.user)
        # Who is told to end in here ends once the child is known: it would be killed, and not asked to end.
        self._starting = True
        try:
            with service.log.open("ab") as output:
                child = subprocess.Popen(
                    service.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **service.env},
                    cwd="/",
                    # A service of its own: a signal to the init's group must not reach it.
                    start_new_session=True,
                    **identity,
                )
            self._running[child.pid] = service
            if service.name not in self._names:
                self._names.append(service.name)
            # Its end is for `_reap`: this object would collect it unseen, as it goes or at the next start.
            child.returncode = 0
        finally:
            self._starting = False
            if self._told:
                self._end()
        return child.pid

    def stop(self, name: str) -> None:
        """Nothing does: what this process has not started has ended with the machine."""

    def tend(self) -> None:
        self._reap(os.WNOHANG)
        due = [s for at, s in self._restarts if at <= time.monotonic()]
        self._restarts = [(at, s) for at, s in self._restarts if at > time.monotonic()]
        for service in due:
            if service.before is not None:
                _run_before(service.before, service.log)
            self.start(service)

    def keep(self) -> None:
        while not self._stopping:
            self.tend()
            # Blocked only for the wait, so that no child inherits it; a child that ended just before is seen
            # when the time is up.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            signal.sigtimedwait([signal.SIGCHLD], 1.0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        self._stop()

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._told = True
        if not self._starting:
            self._end()

    def _end(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._stop()
            os._exit(0)

    def _stop(self) -> None:
        # Not in the order of their last start: one that died meanwhile may be the one that others write to.
        order = sorted(self._running, key=lambda pid: self._names.index(self._running[pid].name))
        for pid in reversed(order):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while pid in self._running and time.monotonic() < deadline:
                self._reap(os.WNOHANG)
                time.sleep(0.01)
        # Whatever jobs left in the background ends with the machine, as it would with a real one. Killed
        # from here, because once the tree's first process is gone nobody knows what belonged to it.
        while below := descendants(os.getpid()):
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap(os.WNOHANG)
            time.sleep(0.01)
        # The last of them: a container's first process may never collect what it inherits.
        self._reap(os.WNOHANG)

    def _reap(self, options: int) -> None:
        """Collect every ended child: services, and orphans that came to the machine's init."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            service = self._running.pop(pid, None)
            if service is not None and not self._stopping:
                with service.log.open("a") as output:
                    output.write(f"{service.name} ended with status {status}; it is started again\n")
                self._restarts.append((time.monotonic() + RESTART_PAUSE_SECONDS, service))
