"""Tests of requests and answers over a real socket."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.system import rpc
from tests.support.checkout import until
from tests.support.naps import noted_naps


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
    thread.join(60)
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
        answers.append(rpc.call(served, "echo", 60.0, n=i)["n"])

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
            rpc.call(str(tmp_path / "s"), "echo", 60.0)
        thread.join()


def test_a_stale_socket_is_replaced_and_a_long_path_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = str(folder / "agent.sock")
    for _ in range(2):
        server = rpc.Server(path, handler)
        threading.Thread(target=server.serve, daemon=True).start()
        assert rpc.call(path, "echo", a=1) == {"a": 1}
        # A dead server leaves its socket, which the next one must replace.
        server._socket.close()
    Path(path).unlink()


def test_garbage_does_not_end_the_server(served: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(served)
        client.sendall(b"not json\n")
        assert b"error" in client.recv(1000)
    assert rpc.call(served, "echo", a=1) == {"a": 1}


def test_a_server_outlives_that_it_cannot_take_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of prologs may be connected, so that there is no descriptor or thread for the next one."""
    path = str(tmp_path / "s.sock")
    server = rpc.Server(path, handler)

    class Full:
        """A socket whose `accept` fails once for lack of descriptors."""

        refusals = 1

        def accept(self) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    class NoThread(threading.Thread):
        refusals = 1

        def start(self) -> None:
            if NoThread.refusals:
                NoThread.refusals -= 1
                raise RuntimeError("can't start new thread")
            super().start()

    real, full = server._socket, Full()
    monkeypatch.setattr(server, "_socket", full)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        monkeypatch.setattr(threading, "Thread", NoThread)
        with pytest.raises(rpc.RpcUnavailableError):
            rpc.call(path, "echo", 60.0)
        assert (full.refusals, NoThread.refusals) == (0, 0)
        assert rpc.call(path, "echo", 60.0, a=1) == {"a": 1}
    finally:
        server.close()
    thread.join(60)
    assert not thread.is_alive(), "it ends when it is closed"


def test_a_caller_waits_for_a_server_that_many_others_ask_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a connection if the queue is full. A resume would wait for the daemon's restart."""
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as others:
        listener.bind(path)
        listener.listen(0)
        other = others.enter_context(socket.socket(socket.AF_UNIX))
        other.connect(path)

        def serve() -> None:
            listener.accept()[0].close()
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                stream.readline()
                connection.sendall(b'{"result": 7}\n')

        server = threading.Thread(target=serve)

        pause = threading.Event()

        def nap(_seconds: float) -> None:
            if len(naps) == 3:
                server.start()
            pause.wait(0.01)

        naps = noted_naps(monkeypatch, nap)
        assert rpc.call(path, "echo", 60.0) == 7
        assert len(naps) >= 3
        server.join(60)


def test_a_caller_does_not_wait_for_ever_for_a_server_that_takes_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen(0)
        other.connect(path)
        with pytest.raises(rpc.RpcUnavailableError, match="temporarily unavailable"):
            rpc.call(path, "echo", 0.2)


def test_an_answer_may_come_later_and_takes_no_thread_until_then(tmp_path: Path) -> None:
    path, callers = str(tmp_path / "s"), queue.Queue[rpc.Caller]()
    server = rpc.Server(path, lambda *_: rpc.Later(callers.put))
    threading.Thread(target=server.serve, daemon=True).start()
    answers: queue.Queue[Any] = queue.Queue()
    for number in range(3):
        threading.Thread(target=lambda n=number: answers.put(asked(path, n)), daemon=True).start()
    waiting = [callers.get(timeout=60) for _ in range(3)]
    assert not any(caller.is_gone() for caller in waiting)
    assert answers.empty()
    for caller in waiting[:2]:
        caller.answer("now")
    waiting[2].refuse(CodedError("never"))
    assert sorted(answers.get(timeout=60) for _ in range(3)) == ["QuotaExceeded", "now", "now"]
    server.close()


def asked(path: str, number: int) -> Any:
    try:
        return rpc.call(path, "wait", 60.0, number=number)
    except rpc.RpcError as error:
        return error.code


def test_a_caller_that_has_ended_is_noticed_and_answered_without_harm(tmp_path: Path) -> None:
    path, callers = str(tmp_path / "s"), queue.Queue[rpc.Caller]()
    server = rpc.Server(path, lambda *_: rpc.Later(callers.put))
    threading.Thread(target=server.serve, daemon=True).start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(b'{"method": "wait"}\n')
        caller = callers.get(timeout=60)
        assert not caller.is_gone()
    until(caller.is_gone, 60, "its end")
    caller.answer(1)
    assert caller.is_gone()
    server.close()
