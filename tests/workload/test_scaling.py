"""The model of the limit: the rounds that it chooses, and what it predicts."""

from __future__ import annotations

import pytest

from workload import scaling
from workload.scaling import Measured


@pytest.mark.parametrize(
    ("step", "exchange", "steps", "every"),
    [
        (0.040, 0.050, 468, 24),  # 24 steps and an exchange take 1.01 s; the exchange is 5 % of it
        (0.040, 0.001, 468, scaling.FEWEST),
        (0.003, 0.050, 468, scaling.MOST),
        (0.040, 0.050, 40, 10),
        (0.040, 0.050, 2, 1),
    ],
)
def test_rounds_are_long_enough_for_the_exchange_and_not_longer(
    step: float, exchange: float, steps: int, every: int
) -> None:
    assert scaling.choose(step, exchange, steps) == every


def test_a_ring_sends_at_most_twice_the_payload() -> None:
    found = Measured(step=0.04, exchange=0.05, workers=2, every=10)
    # Two workers each send the payload once, four 1.5 times, and never twice.
    assert found.exchange_of(2) == pytest.approx(0.05)
    assert found.exchange_of(4) == pytest.approx(0.075)
    assert 0.099 < found.exchange_of(1000) < 0.1


def test_the_prediction_is_the_measurement_where_there_is_one() -> None:
    found = Measured(step=0.04, exchange=0.08, workers=2, every=8)
    # 40 ms compute and 10 ms are the step's part of the exchange.
    assert found.step_of(2) == pytest.approx(0.05)
    assert found.speed_up(1) == pytest.approx(1)
    assert found.speed_up(2) == pytest.approx(2 * 0.8)
    assert found.speed_up(2, alone=0.05) == pytest.approx(2.0)
    assert found.speed_up(4) == pytest.approx(4 * 0.04 / 0.055)
