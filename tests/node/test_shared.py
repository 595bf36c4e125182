"""One reading for all who ask at the same time: how many there are, how old they are, and their errors."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from node.elastic.daemon import Elastic
from node.system import rpc
from node.system.shared import Shared
from tests.support.checkout import until
from tests.support.doubles import FakeControl, FakeDriver, fast_design, job, settings

CALLERS = 60


class Gated:
    """A reading that ends when it is told to. Its result says what was written before it began."""

    def __init__(self) -> None:
        self.written = 0
        self.began = 0
        self.at_once = 0
        self.most_at_once = 0
        self.go = threading.Semaphore(0)
        self.fails = False
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.began += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            found, fails = self.written, self.fails
        assert self.go.acquire(timeout=60)
        with self._lock:
            self.at_once -= 1
        if fails:
            raise OSError("Slurm is away")
        return found


def waits(shared: Shared[int], reading: Gated, pool: ThreadPoolExecutor, count: int) -> list[Future[int]]:
    """Ask `count` times while a reading is in progress, and return when all wait for the next one."""
    arrived = threading.Semaphore(0)

    def ask() -> int:
        arrived.release()
        return shared()

    answers = []
    for _ in range(count):
        answers.append(pool.submit(ask))
        assert arrived.acquire(timeout=60)
    until(lambda: shared._next is not None, 60, "a reading that is waited for", 0.001)
    return answers


def test_callers_at_once_share_a_reading_that_began_after_their_calls() -> None:
    reading = Gated()
    shared = Shared(reading)
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        first = pool.submit(shared)
        until(lambda: reading.began == 1, 60, "the first reading", 0.001)
        reading.written = 1
        others = waits(shared, reading, pool, CALLERS)
        assert reading.began == 1, "the next one has not begun"
        reading.go.release()
        assert first.result(60) == 0
        until(lambda: reading.began == 2, 60, "the second reading", 0.001)
        reading.go.release(2)  # one would do; a caller that was late to ask has one of its own
        found = [other.result(60) for other in others]
    assert set(found) == {1}, "nobody is told what was before the call"
    assert reading.began <= 3
    assert reading.most_at_once == 1


def test_one_caller_after_another_reads_each_time() -> None:
    reading = Gated()
    shared = Shared(reading)
    for number in range(3):
        reading.written = number
        reading.go.release()
        assert shared() == number
    assert reading.began == 3


def test_an_error_is_told_to_those_who_waited_and_not_kept() -> None:
    reading = Gated()
    shared = Shared(reading)
    with ThreadPoolExecutor(4) as pool:
        reading.fails = True
        first = pool.submit(shared)
        until(lambda: reading.began == 1, 60, "the first reading", 0.001)
        others = waits(shared, reading, pool, 3)
        reading.go.release(5)
        for failed in (first, *others):
            with pytest.raises(OSError, match="Slurm is away"):
                failed.result(60)
        until(lambda: reading.at_once == 0, 60, "the end of all readings", 0.001)
    reading.fails = False
    reading.go.release()
    assert shared() == 0


def test_the_daemon_reads_slurm_twice_for_any_number_of_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    elastic = Elastic(settings(tmp_path, fast_design()), control, FakeDriver(), tmp_path)
    began, go = threading.Semaphore(0), threading.Event()
    read, count = control.nodes, []

    def slow() -> object:
        count.append(1)
        began.release()
        assert go.wait(60)
        return read()

    monkeypatch.setattr(control, "nodes", slow)
    came = itertools.count()
    calls = 0

    def handle(method: str, params: dict[str, Any]) -> Any:
        nonlocal calls
        calls = next(came) + 1
        return elastic.handle(method, params)

    server = rpc.Server(str(tmp_path / "s"), handle)
    threading.Thread(target=server.serve, daemon=True).start()
    with ThreadPoolExecutor(CALLERS) as pool:
        first = pool.submit(rpc.call, str(tmp_path / "s"), "status", 60.0)
        assert began.acquire(timeout=60)
        control.queue = {7: job(7)}
        others = [pool.submit(rpc.call, str(tmp_path / "s"), "status", 60.0) for _ in range(CALLERS - 1)]
        until(lambda: calls == CALLERS, 60, "all calls at the daemon", 0.001)
        go.set()
        assert first.result(60)["jobs"] is not None
        assert {other.result(60)["jobs"][0]["id"] for other in others} == {7}
    server.close()
    # A call that had come and had not asked yet has a reading of its own.
    assert 2 <= len(count) <= 4
