"""Starts daemons and keeps them running: systemd on whole machines, the machine's init in process mode."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from node.bootstrap import job_leftovers
from node.slurm.environment import without_slurm
from node.system import subprocesses, waiting
from node.system.accounts import start_as
from node.system.processes import descendants

RESTART_PAUSE_SECONDS = 1.0
STOP_SECONDS = 6.0
BEFORE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon that runs in the foreground under a service manager (systemd, or the machine's init).

    Attributes:
        log: The file for its output, in addition to the daemon's own log file.
        user: The user, with the user's groups. `None` means the user of the service manager.
        before: A program that the service manager runs as its own user before it restarts the service. If
            the program fails, the service starts all the same.
        last: A program that runs before the service is stopped while it works, with its pid as MAINPID. If
            the program fails, the service is stopped all the same.
        condition: A program that is run before each start. If it fails, the service does not start, and is
            not restarted either. Only systemd does that.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    before: str | None = None
    last: str | None = None
    condition: str | None = None


class Services(Protocol):
    """A service manager."""

    def start(self, service: Service) -> int:
        """Start a service and returns its pid."""
        ...

    def stop(self, name: str) -> None:
        """Stop a service that an earlier boot of this machine started, if it still runs."""
        ...

    def tend(self) -> None:
        """Restart services that have ended and whose pause is over. It is for waits before `keep`."""
        ...

    def keep(self) -> None:
        """Keep the services running until the machine ends, and return at once where systemd does that."""
        ...


def _run_beside(program: str, log: Path, **variables: str) -> None:
    with contextlib.suppress(OSError), log.open("ab") as output:
        subprocesses.run([program], {**os.environ, **variables}, BEFORE_SECONDS, output=output)


class InitServices:
    """Services as children of the machine's init. They restart when they end, and stop in reverse order.

    The process must be the subreaper of all its descendants (`localcloud.init`).

    Args:
        node: The node's name, if the machine runs jobs.
    """

    def __init__(self, node: str | None = None) -> None:
        self._node = node
        self._running: dict[int, Service] = {}
        # The names are in the order of first starts, which is the order of dependencies.
        self._names: list[str] = []
        self._restarts: list[tuple[float, Service]] = []
        self._starting = self._terminated = self._stopping = False
        # The handler is set from the first service on, so that a machine that ends during its boot ends its
        # services too.
        signal.signal(signal.SIGTERM, self._on_term)

    def start(self, service: Service) -> int:
        service.log.parent.mkdir(parents=True, exist_ok=True)
        identity = start_as(service.user)
        # A SIGTERM during the start is handled after it, when the child is known and can get a SIGTERM too.
        self._starting = True
        try:
            with service.log.open("ab") as output:
                # No variable of Slurm's but the service's own: slurmctld and slurmd read some, too.
                env = {**without_slurm(os.environ), **service.env}
                child = subprocesses.start(service.argv, env, output, identity=identity)
            self._running[child.pid] = service
            if service.name not in self._names:
                self._names.append(service.name)
            # `_reap` collects the child. Without this line the Popen object would collect it unnoticed.
            child.returncode = 0
        finally:
            self._starting = False
            if self._terminated:
                self._end()
        return child.pid

    def stop(self, name: str) -> None:
        """Do nothing, because the services of an earlier boot ended with the machine."""

    def tend(self) -> None:
        self._reap(os.WNOHANG)
        due = [s for at, s in self._restarts if at <= time.monotonic()]
        self._restarts = [(at, s) for at, s in self._restarts if at > time.monotonic()]
        for service in due:
            if service.before is not None:
                _run_beside(service.before, service.log)
            self.start(service)

    def keep(self) -> None:
        while not self._stopping:
            self.tend()
            if self._node is not None:
                job_leftovers.end(self._node, self._running)
            # SIGCHLD is blocked only for the wait, so that no child inherits that. A child that ended just
            # before is found when the time is up.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            signal.sigtimedwait([signal.SIGCHLD], 1.0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        self._stop()

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True
        if not self._starting:
            self._end()

    def _end(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._stop()
            os._exit(0)

    def _stop(self) -> None:
        # The order of last starts would be wrong: others may depend on a service that was restarted.
        order = sorted(self._running, key=lambda pid: self._names.index(self._running[pid].name))
        for pid in reversed(order):
            # A service may have ended meanwhile. Its pid may then be another process's.
            if pid in self._running:
                if (last := self._running[pid].last) is not None:
                    _run_beside(last, self._running[pid].log, MAINPID=str(pid))
                os.kill(pid, signal.SIGTERM)
            waiting.wait_at_most(functools.partial(self._has_ended, pid), STOP_SECONDS, 0.01)
        # Background processes of jobs end with the machine, as on a real one. They are killed here, because
        # nobody knows what belonged to the tree when its first process has ended.
        while below := descendants(os.getpid()):
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap(os.WNOHANG)
            time.sleep(0.01)
        # The last children are collected too, because a container's first process may never do that.
        self._reap(os.WNOHANG)

    def _has_ended(self, pid: int) -> bool:
        self._reap(os.WNOHANG)
        return pid not in self._running

    def _reap(self, options: int) -> None:
        """Collect all ended children: services, and orphans that the machine's init has inherited."""
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
