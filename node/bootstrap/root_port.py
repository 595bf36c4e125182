"""Connections by which root of a machine speaks to the controller: from a source port below 1024.

The kernel gives such ports to root only, as NFS's `secure` exports require them. The source address says
which machine speaks: both clouds drop packets of a machine under another's address, and TCP needs the way
back anyway. So a server knows who asks before the machine has a secret, and needs no secret itself.
"""

from __future__ import annotations

import errno
import random
import socket
import sys
import time
from collections import Counter

from node.system import plurals

RESERVED = range(512, 1024)
"""Source ports that only root can bind (the range of rresvport(3))."""
LOG_SECONDS = 60.0
"""The shortest time between two groups of lines about refused connections."""
LOG_LINES = 10


class Refusals:
    """A log of refused connections, written now and then: any user of a machine can cause many."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged = float("-inf")

    def add(self, text: str) -> None:
        if text in self._counts or len(self._counts) < 100 * LOG_LINES:
            self._counts[text] += 1
        self.log()

    def log(self) -> None:
        """Write what has come since the last lines, if they are old enough."""
        if self._counts and time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            for text, number in self._counts.most_common(LOG_LINES):
                print(f"{text} ({plurals.count(number, 'time')})", file=sys.stderr, flush=True)
            self._counts.clear()


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """Connect from a free reserved source port.

    Args:
        seconds: The time limit of the connection, and afterwards of each call.

    Raises:
        PermissionError: This process may not bind a source port below 1024.
        OSError: The server cannot be reached, or all such ports are in use.
    """
    for source in random.sample(RESERVED, len(RESERVED)):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(seconds)
        try:
            connection.bind(("", source))
            connection.connect((address, port))
        except OSError as error:
            connection.close()
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
        else:
            return connection
    raise OSError(errno.EADDRINUSE, "all source ports below 1024 are in use on this machine")
