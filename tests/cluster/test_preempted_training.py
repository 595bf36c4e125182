"""A training that makes way for an urgent job saves, goes on, and ends as if nothing had happened."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from operations.local import system_packages
from tests.support.checkout import Checkout, until

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.medium, nodes: {{max: 1}}, default: true, exclusive: true}}
        slurm: {{suspend_time: 60, accounting: true}}
        accounts: [{{name: research, qos: [low, urgent], default_qos: low}}]
        users: [{{name: {owner}, account: research}}]
        qos: [{{name: urgent, priority: 9, preempts: [low]}}, {{name: low}}]
      slurm-stacks:benchmark: {{nodes: 1, epochs: {epochs}, data: synthetic, profile: sync}}
"""
EPOCHS = 2
TRAINS = "-m workload.train \\\n"
WEIGHTS = "weights-0.npz"


# test_resume.py stops a training at every place, and test_sharing_cluster.py lets a job make way.
@pytest.mark.wide
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    bool(system_packages.missing(system_packages.ACCOUNTING)), reason="packages of accounting are missing"
)
def test_it_ends_with_the_same_weights(make_checkout: Callable[..., Checkout]) -> None:
    owner = pwd.getpwuid(os.getuid()).pw_name
    checkout = make_checkout(STACK.format(owner=owner, epochs=EPOCHS))
    script = checkout.folder / "workload" / "run_keras.j2"
    assert script.read_text().count(TRAINS) == 1
    script.write_text(script.read_text().replace(TRAINS, TRAINS.replace("train", "train --weights .")))
    checkout.cluster("up", check=True, timeout=500)
    sweep = subprocess.Popen(
        [str(checkout.folder / "cluster"), "run", "--stack", "test", "--nodes", "1"],
        env=checkout.env,
        cwd=checkout.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    job = until(lambda: checkout.ask("squeue", "-h", "-t", "RUNNING", "-o", "%i").split(), 240, "the job")[0]
    until(lambda: _trains(checkout, job), 240, "its training")
    urgent = ("--qos=urgent", "--output=/dev/null", "--wrap", "sleep 1")
    checkout.ask("sbatch", *urgent)
    _, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, errors
    states = checkout.ask("sacct", "-nPXD", "-j", job, "--format=state").split()
    assert states == ["PREEMPTED", "COMPLETED"]
    alone, disturbed = checkout.results()
    assert (alone["restarts"], disturbed["restarts"]) == (0, 1)
    losses = [[(e["loss"], e["accuracy"]) for e in record["history"]] for record in (alone, disturbed)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == EPOCHS
    assert alone["test_accuracy"] == disturbed["test_accuracy"]
    weights = [np.load(file) for file in (checkout.run_directory / "shared").rglob(WEIGHTS)]
    assert len(weights) == 2
    assert weights[0].files == weights[1].files != []
    for name in weights[0].files:
        np.testing.assert_array_equal(weights[0][name], weights[1][name], err_msg=name)


def _trains(checkout: Checkout, job: str) -> bool:
    """Return whether the job's training has begun."""
    folders = [
        file.parent
        for file in (checkout.run_directory / "shared").rglob("jobid")
        if file.read_text().strip() == job
    ]
    return any("Epoch 1/" in (folder / "out-keras.txt").read_text() for folder in folders)
