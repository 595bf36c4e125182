"""A training whose spot machines are taken back goes on in the next pool, with the same result."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support.checkout import Checkout, until

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - name: train
            instance_type: local.medium
            nodes: {{max: 2}}
            exclusive: true
            pools: [{{name: spot, spot: true}}, {{name: ondemand}}]
        slurm: {{suspend_time: 60}}
      slurm-stacks:benchmark: {{nodes: 2, epochs: {epochs}, data: synthetic, profile: sync}}
"""
EPOCHS = 2
NOTICE = "15"
"""Seconds in which the training saves what it has."""


# test_resume.py stops a training at every place; which pool a job gets is shown without a training.
@pytest.mark.wide
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_it_ends_with_the_same_weights(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK.format(epochs=EPOCHS))
    checkout.cluster("up", check=True, timeout=500)
    sweep = subprocess.Popen(
        [str(checkout.folder / "cluster"), "run", "--stack", "test", "--nodes", "2"],
        env=checkout.env,
        cwd=checkout.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    job = until(lambda: checkout.ask("squeue", "-h", "-t", "RUNNING", "-o", "%i").split(), 240, "the job")[0]
    assert _nodes(checkout) == ["train-spot-[0-1]"]
    until(lambda: _trains(checkout, job), 240, "its training")
    checkout.chaos("set", "capacity.train/spot=0")
    for node in ("train-spot-0", "train-spot-1"):
        checkout.chaos("preempt", node, "--notice", NOTICE)
    until(lambda: _nodes(checkout) == ["train-ondemand-[0-1]"], 240, "its next run, as a whole")
    _, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, errors
    alone, disturbed = checkout.results()
    assert (alone["restarts"], disturbed["restarts"]) == (0, 1)
    assert alone["global_batch"] == disturbed["global_batch"]
    # Losses of whole passes over the data: the slightest difference of a weight shows in them.
    losses = [[(e["loss"], e["accuracy"]) for e in record["history"]] for record in (alone, disturbed)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == EPOCHS
    assert alone["test_accuracy"] == disturbed["test_accuracy"]


def _nodes(checkout: Checkout) -> list[str]:
    return checkout.ask("squeue", "-h", "-t", "RUNNING", "-o", "%N").split()


def _trains(checkout: Checkout, job: str) -> bool:
    """Return whether the job's training has begun."""
    folders = [
        file.parent
        for file in (checkout.run_directory / "shared").rglob("jobid")
        if file.read_text().strip() == job
    ]
    return any("Epoch 1/" in (folder / "out-keras.txt").read_text() for folder in folders)
