"""Pauses that take no time, in the thread of the test alone: those of others, of earlier tests, are real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


def noted_naps(
    monkeypatch: pytest.MonkeyPatch, nap: Callable[[float], object] = lambda seconds: None
) -> list[float]:
    """The pauses that this thread takes from here on.

    Args:
        nap: what happens in place of one.
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
