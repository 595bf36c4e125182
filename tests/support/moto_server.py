"""An empty server of moto on loopback, which speaks AWS's protocols."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

from tests.support import boto_models  # noqa: F401  models are read once


@contextmanager
def moto_server() -> Iterator[str]:
    """Yield the server's URL. All servers of a process share one state, which is emptied first."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset, timeout=60).close()
    try:
        yield url
    finally:
        server.stop()
