"""Tests of how the coverage of this run is measured; without a measurement they prove nothing."""

from __future__ import annotations

import importlib
import sys
from types import FrameType

import pytest

from node.system import plurals


def test_no_code_is_changed_while_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """SlipCover must not look at the frames of all threads, which can stop CPython 3.11 for ever."""
    looks: list[None] = []
    frames = sys._current_frames

    def look() -> dict[int, FrameType]:
        looks.append(None)
        return frames()

    monkeypatch.setattr(sys, "_current_frames", look)
    # Code that was just loaded has all of its probes. By default they are removed at a line's 50th run.
    again = importlib.reload(plurals)
    assert [again.count(n, "node") for n in range(200)][1:3] == ["1 node", "2 nodes"]
    assert not looks
