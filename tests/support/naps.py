"""Pauses that take no time in the test's own thread. Pauses of other threads, of earlier tests, are real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


def noted_naps(
    monkeypatch: pytest.MonkeyPatch, nap: Callable[[float], object] = lambda seconds: None
) -> list[float]:
    """Yield the list of the pauses that this thread takes from here on.

    Args:
        nap: is called in place of each pause.
    """
    naps: list[float] = []
    real, mine = time.sleep, threading.get_ident()

    def sleep(seconds: float) -> None:
        if threading.get_ident() != mine:
            real(seconds)
            return
        naps.append(seconds)
        nap(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return naps
