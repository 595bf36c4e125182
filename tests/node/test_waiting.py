"""The waits of a machine's code, with a clock that only their own pauses move."""

from __future__ import annotations

import itertools

import pytest

from node.system.waiting import doubling_pauses, pauses_for, retry, wait_at_most, wait_until


class Clock:
    """A clock that stands still between pauses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_wait_ends_with_the_first_true_value(clock: Clock) -> None:
    values = iter([None, "", "there"])
    assert wait_until(lambda: next(values), 10, "late", 2.0, clock=clock, sleep=clock.sleep) == "there"
    assert clock.pauses == [2.0, 2.0]


def test_a_wait_that_is_over_looks_once_more_and_says_for_what_it_waited(clock: Clock) -> None:
    looks: list[float] = []

    def condition() -> bool:
        looks.append(clock.now)
        return False

    with pytest.raises(TimeoutError, match="the disk is not there"):
        wait_until(condition, 5, "the disk is not there", 2.0, clock=clock, sleep=clock.sleep)
    assert looks == [100.0, 102.0, 104.0, 106.0]
    assert wait_at_most(condition, 0, clock=clock, sleep=clock.sleep) is False
    assert looks[4:] == [106.0], "a wait of no time looks once"


def test_an_error_of_the_condition_ends_the_wait(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        wait_at_most(lambda: 1 / 0, 5, clock=clock, sleep=clock.sleep)
    assert clock.pauses == []


def test_an_action_is_repeated_after_errors_that_pass(clock: Clock) -> None:
    attempts = itertools.count(1)

    def action() -> int:
        if (number := next(attempts)) < 4:
            raise OSError(number)
        return number

    assert retry(action, OSError, doubling_pauses(5, 0.5, 1.5), sleep=clock.sleep) == 4
    assert clock.pauses == [0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("error", "pauses", "attempts"),
    [(OSError("busy"), [1.0, 1.0], 3), (OSError("for good"), [1.0], 1), (ValueError("other"), [1.0], 1)],
)
def test_the_last_error_is_raised(clock: Clock, error: Exception, pauses: list[float], attempts: int) -> None:
    made: list[int] = []

    def action() -> None:
        made.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        retry(action, OSError, pauses, lambda error: str(error) == "busy", sleep=clock.sleep)
    assert caught.value is error
    assert len(made) == attempts


def test_pauses_for_a_time_end_when_it_is_over(clock: Clock) -> None:
    def action() -> None:
        clock.now += 3  # an attempt takes a while
        raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        retry(action, OSError, pauses_for(10, 1.0, clock), sleep=clock.sleep)
    assert clock.pauses == [1.0, 1.0]
    assert clock.now == 111.0
