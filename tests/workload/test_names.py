"""TensorFlow's own resolver finds a job's nodes by name, between machines with separate networks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.named_machines import NamedMachines, need_named_machines

NODES = {"compute-0": "10.98.1.1", "compute-1": "10.98.1.2"}
PROGRAM = """
import tensorflow as tf
# As on machines with one GPU each, of which TensorFlow hides none.
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False)
print("cluster", sorted(resolver.cluster_spec().as_dict()["worker"]))
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
@tf.function
def total():
    of_each = strategy.run(lambda: tf.ones([1]) * float(resolver.task_id + 1))
    return strategy.reduce("SUM", of_each, axis=None)
print("sum", total().numpy().sum())
"""
SECONDS = 600


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedMachines]:
    need_named_machines()
    named_machines = NamedMachines(monkeypatch)
    try:
        named_machines.serve()
        named_machines.come_up(**{name.replace("-", "_"): address for name, address in NODES.items()})
        yield named_machines
    finally:
        named_machines.close()


# By default tests/cluster/test_names_served.py shows that jobs find their nodes by name.
@pytest.mark.wide
@pytest.mark.tensorflow
@pytest.mark.timeout(SECONDS)
def test_tensorflows_own_resolver_of_slurm_clusters(machines: NamedMachines, tmp_path: Path) -> None:
    step = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "compute-[0-1]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    tasks = [
        subprocess.Popen(
            [*machines.net.into(node), sys.executable, "-c", PROGRAM],
            env={**step, "SLURM_PROCID": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, node in enumerate(NODES)
    ]
    try:
        said = [task.communicate(timeout=SECONDS) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    for task, (printed, complained) in zip(tasks, said, strict=True):
        assert task.returncode == 0, complained
        assert printed.splitlines() == ["cluster ['compute-0:8888', 'compute-1:8888']", "sum 3.0"]
