"""The examples of docs/own_training.md on a real cluster of two nodes, if their packages are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT, Checkout

EXAMPLES = ROOT / "examples" / "training"
VARIABLE = "SLURM_STACKS_TEST_TORCH"
"""The variable with the path of a Python that has torch, which no environment of this project has (3 GB)."""

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.medium, nodes: {{max: 2}}, default: true}}
        slurm: {{suspend_time: 4}}
      slurm-stacks:benchmark: {benchmark}
"""


def torch_python() -> str | None:
    if named := os.environ.get(VARIABLE):
        return named
    return sys.executable if importlib.util.find_spec("torch") else None


def trained(checkout: Checkout) -> dict[str, Any]:
    """Bring the stack up with its program, and return the only result."""
    checkout.cluster("up", check=True, timeout=500)
    (record,) = checkout.results()
    return record


def check(record: dict[str, Any], workers: int) -> None:
    assert (record["nodes"], record["notes"]) == (2, [])
    assert 0 < record["values"]["seconds_train"] < record["seconds_total"]
    assert record["values"]["test_accuracy"] > 0.8
    assert [line["epoch"] for line in record["history"]] == [1, 2]
    assert record["history"][1]["loss"] < record["history"][0]["loss"]
    assert record["values"].get("workers", workers) == workers


@pytest.mark.wide
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_keras(make_checkout: Callable[..., Checkout]) -> None:
    benchmark = "{script: train/keras_fit.py, nodes: 2, arguments: [--epochs, 2]}"
    checkout = make_checkout(STACK.format(benchmark=benchmark))
    shutil.copytree(EXAMPLES, checkout.folder / "train")
    record = trained(checkout)
    check(record, workers=2)
    assert record["versions"].keys() >= {"python", "tensorflow-cpu", "numpy"}


@pytest.mark.skipif(torch_python() is None, reason=f"needs torch: {VARIABLE} names a Python that has it")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("way", "workers"), [("launcher", 4), ("torchrun", 4)])
def test_torch(make_checkout: Callable[..., Checkout], way: str, workers: int) -> None:
    """Each task is one worker, or each node has one torchrun with two workers."""
    line = "torch_ddp.py" if way == "launcher" else "torchrun.sh"
    tasks = 2 if way == "launcher" else 1
    benchmark = (
        f"{{script: train.sh, files: [train], nodes: 2, tasks_per_node: {tasks}, arguments: [--epochs, 2]}}"
    )
    checkout = make_checkout(STACK.format(benchmark=benchmark))
    checkout.shorten_training()
    shutil.copytree(EXAMPLES, checkout.folder / "train")
    python = Path(torch_python() or "")
    interpreter = f"{python} " if way == "launcher" else ""
    (checkout.folder / "train.sh").write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            export PATH="{python.parent}:$PATH" WORKERS_PER_NODE=2 OMP_NUM_THREADS=1
            exec {interpreter}train/{line} "$@"
        """)
    )
    check(trained(checkout), workers)
