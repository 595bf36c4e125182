"""Messages between two nodes: each is one line of JSON, on a connection that stays open for the whole job.

A process that dies closes its connection, which the other side sees at once. A machine that dies, or a
network that breaks, closes nothing. So both sides send heartbeats, and a side that is silent for too long
counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from workload.result import parse

LONGEST = 1 << 20
"""The most bytes of a message. The addresses of a thousand nodes take 20 KiB."""
BEAT: dict[str, Any] = {"beat": 1}
BEATS = 4
"""The number of heartbeats within the time after which a silent node counts as lost."""


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
                message = parse(line)
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
