"""Tests of which process listens on a port, by /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from node.system import ports


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def number(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def test_a_listener_is_found_and_named(listener: socket.socket) -> None:
    taken = number(listener)
    assert not ports.free(taken)
    assert taken in ports.listening([os.getpid()])
    assert ports.holder(taken) == f"{_name()} (pid {os.getpid()})"
    listener.close()
    assert taken not in ports.listening([os.getpid()])


def test_a_port_that_was_given_back_is_free() -> None:
    """Another process may have taken a free port already, but not each of several ports."""
    given_back = []
    for _ in range(5):
        with socket.create_server(("127.0.0.1", 0)) as made:
            given_back.append(number(made))
    assert any(map(ports.free, given_back))


def test_ipv6_listeners_count(listener: socket.socket) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as other:
        taken = number(other)
        assert not ports.free(taken)
        assert taken in ports.listening([os.getpid()])


def test_a_connection_is_no_listener(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as connection:
        assert number(connection) not in ports.listening([os.getpid()])


def test_others_listeners_are_not_ours(listener: socket.socket) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert ports.listening([child.pid, 2**22 + 1]) == set()
        child.communicate(b"\n")


def test_a_port_that_nobody_is_seen_to_have() -> None:
    with socket.socket() as ours:
        # The port is bound, so that no other process can have it, but nothing listens.
        ours.bind(("127.0.0.1", 0))
        assert ports.holder(number(ours)) == "a process of another user"


def _name() -> str:
    with open("/proc/self/comm") as file:  # noqa: PTH123
        return file.read().strip()
