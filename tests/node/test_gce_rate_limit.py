"""Deletes stay within a project's rate limit."""

from __future__ import annotations

import pytest

from node.elastic.drivers.gce.deletes import BURST, RATE, RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_burst_and_then_so_many_a_second() -> None:
    clock = Clock()
    pace = RateLimit(10.0, 5, clock, clock.sleep)
    for _ in range(5):
        pace.take()
    assert clock.now == 100.0
    for _ in range(20):
        pace.take()
    assert clock.now == pytest.approx(102.0)
    clock.now += 60
    for _ in range(5):
        pace.take()
    assert clock.now == pytest.approx(162.0), "what was not used is not saved up beyond the burst"


def test_a_thousand_deletes_take_less_than_a_minute_and_stay_below_the_projects_rate() -> None:
    clock = Clock()
    pace = RateLimit(RATE, BURST, clock, clock.sleep)
    for _ in range(1000):
        pace.take()
    assert clock.now - 100.0 == pytest.approx((1000 - BURST) / RATE)
    assert clock.now - 100.0 < 60
    assert BURST + RATE * 60 <= 1500
