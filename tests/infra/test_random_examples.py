"""Coverage does not count what random examples reach: the tests' own settings see to that."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule


class Machine(RuleBasedStateMachine):
    @rule()
    def step(self) -> None:
        """Nothing."""


TestMachine = Machine.TestCase


@settings(max_examples=1, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(example=st.none())
def test_random_examples_are_not_counted(request: pytest.FixtureRequest, example: None) -> None:
    assert example is None
    assert request.node.get_closest_marker("no_cover")


def test_random_histories_are_not_counted_and_all_else_is(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("no_cover") is None
    histories = [item for item in request.session.items if item.name == "runTest"]
    assert all(item.get_closest_marker("no_cover") for item in histories)
