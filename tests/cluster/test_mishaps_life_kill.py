"""`up` is killed at every stage and in every way: the next `up` continues, and `down` leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import Checkout, until
from tests.support.mishaps import Command, made, pids, quick_benchmark

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
        slurm: {suspend_time: 2}
      slurm-stacks:benchmark: {nodes: 1, epochs: 1, data: synthetic}
"""
STAGES = ("cloud", "bundle", "head", "stage", "job")
MOMENTS = [(stage, moment) for stage in STAGES for moment in ("during", "after")]


def kill_up(checkout: Checkout, stage: str, moment: str, way: str) -> None:
    """Run `up` and SIGKILL it at that moment.

    Args:
        way: What is killed: `process`; `group`, its process group; `all`, also the commands that it runs.
    """
    up = Command(checkout, "up")

    def there() -> bool:
        listed = made(checkout).get(stage, {"whole": False, "process": None})
        # If the moment is missed, the end of the verb counts.
        return bool(listed["whole"] or (listed["process"] and moment == "during"))

    if moment == "follow":
        up.until_said("running on")
    else:
        up.until(there, f"{moment} {stage}")
    running = [m["process"][0] for m in made(checkout).values() if m["process"]] if way == "all" else []
    assert up.end(group=way == "group") == -signal.SIGKILL
    for pid in running:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def alone(checkout: Checkout) -> None:
    """Check that no process of the cluster runs twice."""
    for program in (
        "localcloud.agent",
        "--role\0controller",
        "/usr/sbin/slurmctld\0",
        "/usr/sbin/munged",
    ):
        # A second agent ends by itself when it finds the first one's lock.
        until(lambda text=program: len(pids(checkout, text)) <= 1, 120, f"one {program}")  # type: ignore[misc]


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_up_killed_at_every_stage_goes_on_where_it_stopped(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK)
    hold = quick_benchmark(checkout)
    hold.touch()
    ways = ("process", "group", "all")
    for number, (stage, moment) in enumerate([*MOMENTS, ("job", "follow")]):
        kill_up(checkout, stage, moment, ways[number % 3])
        alone(checkout)
    hold.unlink()
    up = checkout.cluster("up", check=True)
    alone(checkout)
    assert "Result of job 1" in up.stdout
    jobs = checkout.execute("squeue", "--noheader", "--all", "--states=all", "--format=%i %T").splitlines()
    assert jobs == ["1 COMPLETED"], "one job, however often it was submitted"
    again = checkout.cluster("up", check=True)
    assert "created" not in again.stderr
    assert "Result of job 1" in again.stdout


@pytest.mark.timeout(600)
def test_down_straight_after_a_kill_leaves_nothing(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK)
    quick_benchmark(checkout).touch()
    # tests/cli/test_embedded.py and the test above have the other moments.
    kill_up(checkout, "job", "during", "process")
    nothing_left(checkout, checkout.cluster("down", check=True))


def nothing_left(checkout: Checkout, down: Any) -> None:
    assert "nothing is left" in down.stderr
    assert "Traceback" not in down.stderr
    assert checkout.processes() == []
    assert not checkout.run_directory.exists()
    assert not checkout.state.parent.exists()
    assert list(Path(checkout.env["XDG_STATE_HOME"]).glob("slurm-stacks/*/*")) == []
