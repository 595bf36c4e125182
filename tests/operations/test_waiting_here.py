"""Waits with a time limit, by a clock of the test's."""

from __future__ import annotations

import time

import pytest

from operations.waiting import attempts, wait_until
from tests.support.naps import noted_naps


class Clock:
    """A clock that only pauses move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_attempts_end_when_the_time_is_over(clock: Clock) -> None:
    assert list(attempts(10, 4, clock.sleep)) == [10, 6, 2, 0]
    assert clock.pauses == [4, 4, 4]


def test_there_is_at_least_one_attempt(clock: Clock) -> None:
    assert list(attempts(-1, 4, clock.sleep)) == [0]
    assert clock.pauses == []


def test_a_condition_that_becomes_true_ends_the_wait(clock: Clock) -> None:
    answers = iter(["", "", "there", "later"])
    assert wait_until(lambda: next(answers), 60, 5, clock.sleep) == "there"
    assert clock.pauses == [5, 5]


def test_a_condition_that_stays_false_is_returned(clock: Clock) -> None:
    assert wait_until(list, 7, 5, clock.sleep) == []
    assert clock.pauses == [5, 5]


def test_without_another_way_it_is_time_that_sleeps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    noted_naps(monkeypatch, clock.sleep)
    assert wait_until(lambda: clock.now > 101, 60, 1)
    assert clock.pauses == [1, 1]
