"""Tests that the controller gives the munge key to root of another machine, and to no other user."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.bootstrap import key_server
from node.bootstrap.root_port import RESERVED, Refusals
from tests.support.checkout import ROOT
from tests.support.ordinary_user import OrdinaryUser

KEY = bytes(range(256)) * 4

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a port below 1024")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "munge.key"
    file.write_bytes(KEY)
    file.chmod(0o400)
    return file


@pytest.fixture
def port(key_file: Path) -> Iterator[int]:
    """The controller's server, on a port of the test."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, (address, source) = server.accept()
                    with connection:
                        key_server.answer(connection, address, source, key_file, Refusals())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def test_root_has_the_key_and_the_controllers_time(port: int) -> None:
    before = time.time()
    key, clock, password = key_server.fetch("127.0.0.1", port)
    assert (key, password) == (KEY, b"")
    assert before <= clock <= time.time()


def test_a_port_that_anybody_can_have_gets_nothing(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        assert connection.getsockname()[1] not in RESERVED
        assert connection.recv(4096) == b""


def test_an_ordinary_user_gets_nothing_whatever_it_tries(port: int, tmp_path: Path) -> None:
    """The key is refused for our client, for every source port of a user, and in a user namespace."""
    tries = """
import socket, sys
from node.bootstrap import key_server
port = int(sys.argv[1])
try:
    key_server.fetch("127.0.0.1", port)
except PermissionError:
    print("no reserved port")
for source in (0, 1024, 1025):
    connection = socket.socket()
    connection.settimeout(60)
    try:
        connection.bind(("", source))
        connection.connect(("127.0.0.1", port))
    except OSError:
        continue
    print(len(connection.recv(4096)))
"""
    folder = tmp_path / "user"
    folder.mkdir()
    with contextlib.closing(OrdinaryUser(folder)) as user:
        for prefix in ([], ["unshare", "--user", "--map-root-user"]):
            argv = user(*prefix, sys.executable, "-c", tries, str(port))
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=120,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder,
            )  # fmt: skip
            if prefix and "unshare" in done.stderr:
                continue  # this kernel allows no user namespaces for ordinary users
            lines = done.stdout.split("\n")
            assert lines[0] == "no reserved port", done.stderr
            assert set(lines[1:]) <= {"0", ""}


def test_a_controller_without_the_key_yet_says_so(port: int, key_file: Path) -> None:
    key_file.unlink()
    with pytest.raises(key_server.KeyUnavailableError, match="sent 0 of 1032 bytes"):
        key_server.fetch("127.0.0.1", port)


def test_a_controller_that_is_not_there_yet_is_told_apart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(key_server.KeyUnavailableError, match="refused"):
            key_server.fetch("127.0.0.1", taken.getsockname()[1])


def test_the_daemon_serves_until_it_is_ended(key_file: Path) -> None:
    """This runs the controller's service: its program, as root, on a port below 1024."""
    free = next(p for p in range(600, 800) if _free(p))
    password = key_file.parent / "password"
    password.write_bytes(b"a reader's secret: 100 %")
    service = key_server.service(sys.executable, ROOT, key_file, key_file.parent / "log", password)
    *argv, call = service.argv
    call = f"{call.removesuffix(')')}, port={free})"
    with subprocess.Popen([*argv, call], stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == f"serving on port {free}\n"
            given = [key_server.fetch("127.0.0.1", free) for _ in range(3)]
            assert [(one.key, one.password) for one in given] == [(KEY, password.read_bytes())] * 3
        finally:
            daemon.terminate()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
