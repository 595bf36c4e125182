"""The machine was restarted, or /tmp was cleaned up, while the state says that the cluster is up."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkout import Checkout, until
from tests.support.mishaps import Command, kill_all, pids, quick_benchmark, until_saved

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
        slurm: {suspend_time: 1}
      slurm-stacks:benchmark: {nodes: 1, epochs: 1, data: synthetic}
"""
COMMANDS = (("status",), ("exec", "--", "squeue"), ("logs",))


def reboot(checkout: Checkout, *, run_directory: bool) -> None:
    """End all processes at once. Afterwards /tmp may be empty."""
    while checkout.processes():
        kill_all(checkout)
    if not run_directory:
        shutil.rmtree(checkout.run_directory)
    (state,) = state_files(checkout)
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "an earlier one"}))


def state_files(checkout: Checkout) -> list[Path]:
    return list(checkout.state.glob("state.json"))


def kept(checkout: Checkout) -> list[Path]:
    return sorted(Path(checkout.env["XDG_STATE_HOME"]).glob("slurm-stacks/results/test/*.json"))


def up_to_its_result(checkout: Checkout) -> str:
    """Run `up` without its wait until the nodes are off. Returns its output."""
    up = Command(checkout, "up")
    up.until_said("nodes go back after")
    assert up.end(signal.SIGINT) in (130, 0), up.said  # 0: the nodes were off already
    return up.said


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_up_and_down_after_a_reboot(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK)
    quick_benchmark(checkout)
    up_to_its_result(checkout)
    held = ("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true")
    waiting = checkout.execute(*held).strip()
    until_saved(checkout)

    # The run directory outlived the reboot, and with it Slurm's own state.
    reboot(checkout, run_directory=True)
    for command in COMMANDS[:2]:
        told = checkout.cluster(*command)
        assert told.returncode == 1
        assert "the controller of stack test does not run: the machine was restarted" in told.stderr
        assert "`./cluster up --stack test` starts it again with its queue" in told.stderr
    text = up_to_its_result(checkout)
    assert "the machine was restarted since this stack was brought up" in text
    assert "Result of job 1" in text, "its result is still there"
    assert checkout.execute("squeue", "--noheader", "--format=%i").split() == [waiting]
    assert len(pids(checkout, "localcloud.agent")) == 1
    assert len(kept(checkout)) == 1

    # The run directory was lost. Only what is kept elsewhere is there.
    reboot(checkout, run_directory=False)
    for command in COMMANDS:
        told = checkout.cluster(*command)
        assert told.returncode == 1, command
        assert f"stack test was up, but {checkout.run_directory} is gone" in told.stderr, command
        assert "`./cluster up --stack test` makes a new cluster" in told.stderr
        assert "Traceback" not in told.stderr
    text = up_to_its_result(checkout)
    assert "the machine was restarted since this stack was brought up" in text
    assert "Result of job 1" in text, "the benchmark has run again, as the first job of a new queue"
    assert len(kept(checkout)) == 2, "the new result, and the one from before"
    assert checkout.execute("srun", "-N1", "hostname").strip()

    reboot(checkout, run_directory=False)
    down = checkout.cluster("down", check=True)
    assert "nothing is left" in down.stderr
    assert state_files(checkout) == []
    assert len(kept(checkout)) == 2
    until(lambda: checkout.cluster("status").stderr.startswith("stack test is not up"), 120, "the word")
