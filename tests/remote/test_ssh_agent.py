"""The check for an SSH agent with a key, with real agents and with things that are none."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.errors import UserError
from infra.ssh import agent
from tests.support.sshd import Agent, make_key

pytestmark = pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="ssh-agent is not installed")


@contextmanager
def listening(path: Path, answer: bytes) -> Iterator[None]:
    """A server at the socket that gives a fixed answer to everything."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_an_agent_with_a_key_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Agent(tmp_path / "a", make_key(tmp_path / "key"))
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(held.socket))
        agent.require()
    finally:
        held.stop()


def test_an_agent_without_a_key_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Agent(tmp_path / "a")
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(empty.socket))
        refuses(str(empty.socket), "holds no key", "ssh-add")
    finally:
        empty.stop()
    refuses(str(empty.socket), "does not answer", "Connection refused")


def test_no_agent_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        if value is not None:
            monkeypatch.setenv("SSH_AUTH_SOCK", value)
        refuses("SSH_AUTH_SOCK is not set", 'eval "$(ssh-agent)"', "ssh-add")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    refuses(str(tmp_path / "gone"), "does not answer", "No such file")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request", b"\0\0\0\x01\x05"])
def test_what_is_no_agent_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "socket"))
    with listening(tmp_path / "socket", answer):
        refuses("does not answer")


def test_one_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "ANSWER_SECONDS", 0.2)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        refuses("does not answer", "timed out")


def test_without_openssh_nobody_can_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "socket"))
    monkeypatch.setenv("PATH", str(tmp_path))
    refuses("`ssh-add`, which is not on PATH", "Install OpenSSH's client")


def refuses(*words: str) -> None:
    with pytest.raises(UserError) as raised:
        agent.require()
    assert raised.value.exit_code == 3
    for word in words:
        assert word in str(raised.value)
