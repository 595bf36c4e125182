"""Starts a node's program, and ends it with all processes that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload.errors import WorkloadError

GRACE_SECONDS = 20.0
"""The time between SIGTERM and SIGKILL. AWS Batch gives the container 30 seconds."""


class Process:
    """A running program, in a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Process:
        """Start a program. It inherits standard output and standard error, but no locks or sockets.

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
        """Wait for the end, and return the exit status as shells do: 128 + number for a signal."""
        status = await self._process.wait()
        # Processes that the program left behind would keep the GPUs.
        self._signal(signal.SIGKILL)
        return status if status >= 0 else 128 - status

    async def end(self) -> None:
        """Send SIGTERM, and SIGKILL if that is not enough."""
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
    """Return an exit status in words."""
    if status > 128 and status - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"
