"""Requests and answers over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.node import rpc


class CodedError(Exception):
    code = "QuotaExceeded"


def handler(method: str, params: dict[str, Any]) -> Any:
    if method == "echo":
        return params
    if method == "refuse":
        raise CodedError("no more")
    raise ValueError(method)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "s.sock")
    server = rpc.Server(path, handler)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield path
    server.close()
    thread.join(5)
    assert not Path(path).exists()


def test_answer_is_what_was_asked(served: str) -> None:
    assert rpc.call(served, "echo", text="ä\n", big="x" * 300_000) == {"text": "ä\n", "big": "x" * 300_000}


def test_errors_carry_code_and_text(served: str) -> None:
    with pytest.raises(rpc.RpcError, match="no more") as caught:
        rpc.call(served, "refuse")
    assert caught.value.code == "QuotaExceeded"
    with pytest.raises(rpc.RpcError) as other:
        rpc.call(served, "what")
    assert other.value.code == "ValueError"


def test_many_callers_at_once(served: str) -> None:
    answers: list[Any] = []

    def ask(i: int) -> None:
        answers.append(rpc.call(served, "echo", n=i)["n"])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(60))


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(rpc.RpcUnavailableError):
        rpc.call(str(tmp_path / "none.sock"), "echo")


def test_a_server_that_closes_without_an_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(rpc.RpcUnavailableError):
            rpc.call(str(tmp_path / "s"), "echo", 5.0)
        thread.join()


def test_a_stale_socket_is_replaced_and_a_long_path_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = str(folder / "agent.sock")
    for _ in range(2):
        server = rpc.Server(path, handler)
        threading.Thread(target=server.serve, daemon=True).start()
        assert rpc.call(path, "echo", a=1) == {"a": 1}
        # A server that died leaves its socket: the next one must not stumble over it.
        server._socket.close()
    Path(path).unlink()


def test_garbage_does_not_end_the_server(served: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(served)
        client.sendall(b"not json\n")
        assert b"error" in client.recv(1000)
    assert rpc.call(served, "echo", a=1) == {"a": 1}
