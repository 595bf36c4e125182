"""The daemon's steps: an error of one stops no other, and is in the status until the step works again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from node.elastic import steps
from node.elastic.daemon import Elastic
from node.elastic.steps import NOT_TRIED, Step
from node.slurm.control import SlurmDown
from node.system import rpc
from tests.support.doubles import FakeControl, FakeDriver, fast_design, node, settings


class Work:
    """A step's work, which raises or returns what the test wants next."""

    def __init__(self) -> None:
        self.next: object = None

    def __call__(self) -> object:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SlurmDown(["scontrol", "ping"], 1, "nobody\nthere"), "scontrol ping: nobody there"),
        (rpc.RpcError("forbidden", "may not list"), "may not list"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError("x" * 999), f"ValueError: {'x' * 999}"[: steps.MESSAGE_LENGTH]),
    ],
)
def test_an_error_is_known_until_the_step_works_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    monkeypatch.setattr("node.elastic.steps.time.time", itertools.count(100.0, 10.0).__next__)
    monkeypatch.setattr(steps, "log", lambda _: None)
    work = Work()
    step = Step("walk", "walks", work)
    assert step.status() == {"name": "walk", "does": "walks", "error": None}
    work.next = error
    step.run()
    assert step.status()["error"] == {"message": message, "at": 100.0, "since": 100.0, "times": 1}
    step.run()
    assert step.status()["error"] == {"message": message, "at": 110.0, "since": 100.0, "times": 2}
    work.next = NOT_TRIED
    step.run()
    assert step.status()["error"]["times"] == 2, "nothing has shown that it works"
    work.next = []
    step.run()
    assert step.status()["error"] is None
    work.next = error
    step.run()
    assert step.status()["error"]["since"] == 120.0


def failing(elastic: Elastic) -> dict[str, str]:
    return {step["name"]: step["error"]["message"] for step in elastic.status()["steps"] if step["error"]}


def test_each_step_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """All of the daemon's steps, one after the other."""
    control, driver = FakeControl([node("debug-0", "IDLE", "CLOUD", "POWERED_DOWN")]), FakeDriver()
    elastic = Elastic(settings(tmp_path, fast_design()), control, driver, tmp_path)
    table = (*elastic._steps, elastic.capacity_limiter.step)
    ran: list[str] = []

    def noting(step: Step, work: Callable[[], object]) -> Callable[[], object]:
        def noted() -> object:
            ran.append(step.name)
            return work()

        return noted

    for step in table:
        step._work = noting(step, step._work)

    def look() -> list[str]:
        ran.clear()
        elastic.look()
        elastic.capacity_limiter.step.run()
        return ran

    names = [step.name for step in table]
    assert len(names) == len(set(names)) == 11
    assert look() == names
    assert failing(elastic) == {}
    for step in table:
        works = step._work

        def fail(step: Step = step) -> None:
            ran.append(step.name)
            raise RuntimeError(f"no {step.name}")

        step._work = fail
        assert look() == names
        assert failing(elastic) == {step.name: f"RuntimeError: no {step.name}"}
        step._work = works
        look()
        assert failing(elastic) == {}
