"""One reading for all callers who ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Answers each call by a reading that began after the call: whoever has just submitted a job sees it.

    A call that comes while a reading is in progress waits for the next one, which all calls share that come
    before it begins. So two readings at most are on their way, for any number of callers. Nothing is kept: an
    error is raised for those who waited for it, and the next call reads again.

    Args:
        read: Reads. What it returns is the same object for all callers.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._next: Future[T] | None = None
        """The reading that has not begun yet, if anybody waits for one."""

    def __call__(self) -> T:
        with self._lock:
            is_first = self._next is None
            answer = self._next = self._next or Future()
        if is_first:
            with self._reading:
                with self._lock:
                    self._next = None
                try:
                    answer.set_result(self._read())
                except BaseException as error:  # those who wait must not wait for ever
                    answer.set_exception(error)
        return answer.result()
