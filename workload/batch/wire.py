"""How two nodes talk: one line of JSON a message, over a connection that stays open for the whole job.

A process that dies closes its connection, which the other side sees at once. A machine that dies, or a
network that breaks, closes nothing: so both sides say something regularly, and whoever is silent too long is
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

LONGEST = 1 << 20
"""The most bytes of a message: the addresses of a thousand nodes have 20 KiB."""
BEAT: dict[str, Any] = {"beat": 1}
BEATS = 4
"""The number of beats within the time of silence that makes a node lost."""


class LostError(Exception):
    """The other side is gone or silent; the text says which."""


class Channel:
    """One connection, with a beat of its own from the moment on that it is made."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence: float) -> None:
        self._reader, self._writer, self._silence = reader, writer, silence
        self._beat = asyncio.create_task(self._beats())

    @property
    def here(self) -> str:
        """This side's address."""
        return str(self._writer.get_extra_info("sockname")[0])

    @property
    def there(self) -> str:
        """The other side's address."""
        return str(self._writer.get_extra_info("peername")[0])

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. A connection that is lost is for `receive` to find."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            LostError: There will be none.
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
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                raise LostError("it sent what is no message")
            if message != BEAT:
                return message

    async def close(self) -> None:
        """Send what is still to be sent, and close the connection."""
        self._beat.cancel()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    async def _beats(self) -> None:
        while True:
            self.send(BEAT)
            await asyncio.sleep(self._silence / BEATS)
