"""Starts the program of a node and ends it, with all that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload.errors import WorkloadError

GRACE_SECONDS = 20.0
"""The time that a program has between SIGTERM and SIGKILL. Batch gives the container 30 seconds."""


class Process:
    """A running program, in a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Process:
        """Start a program. It inherits no locks and sockets but standard output.

        Raises:
            WorkloadError: It cannot be started.
        """
        try:
            return cls(
                await asyncio.create_subprocess_exec(
                    *command,
                    env=dict(env),
                    cwd=folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise WorkloadError(f"{command[0]} cannot be started: {error.strerror}") from error

    async def wait(self) -> int:
        """Wait for its end, and return its exit status as shells say it: 128 + number for a signal."""
        status = await self._process.wait()
        # What it has left in its group would keep the GPUs.
        self._signal(signal.SIGKILL)
        return status if status >= 0 else 128 - status

    async def end(self) -> None:
        """Ask it to end, and end it if it does not."""
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._process.wait()
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def described(status: int) -> str:
    """Return an exit status as people say it."""
    if status > 128 and status - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"
