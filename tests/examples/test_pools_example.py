"""The example of pools: its stack is sound, and its training goes on from what it has saved."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from infra.config import load_file
from infra.design import design
from infra.instance_types.catalog import catalog
from tests.support.checkout import ROOT

EXAMPLE = ROOT / "examples" / "pools"
EPOCHS = 6


def run(folder: Path, nodes: str, stop_after: int | None = None) -> None:
    """Run the two tasks in a run's folder, as a job would; end them when so many epochs are saved."""
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    files = {name: str(folder / name.lower()) for name in ("SLURM_STACKS_PROGRESS", "SLURM_STACKS_RESULT")}
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "SLURM_JOB_NODELIST": nodes}
    command = [sys.executable, str(EXAMPLE / "train.py"), "--epochs", str(EPOCHS), "--seconds", "0.1"]
    tasks = [
        subprocess.Popen(command, cwd=folder, env={**os.environ, **files, **job, "RANK": rank})
        for rank in ("0", "1")
    ]
    while stop_after is not None and saved(folder) < stop_after:
        assert tasks[0].poll() is None
        time.sleep(0.01)
    for task in tasks if stop_after is not None else ():
        task.kill()
    ends = [task.wait(60) for task in tasks]
    assert stop_after is not None or ends == [0, 0]


def saved(folder: Path) -> int:
    file = folder / "checkpoint.json"
    return int(json.loads(file.read_text())["epoch"]) if file.exists() else 0


def test_the_training_goes_on_elsewhere_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    alone, disturbed = tmp_path / "alone", tmp_path / "disturbed"
    for folder in (alone, disturbed):
        folder.mkdir()
    run(alone, "train-spot-[0-1]")
    run(disturbed, "train-spot-[0-1]", stop_after=2)
    run(disturbed, "train-ondemand-[0-1]")
    one, two = (json.loads((folder / "slurm_stacks_result").read_text()) for folder in (alone, disturbed))
    assert one["weights"] == two["weights"]
    assert (one["nodes"], two["nodes"]) == ("train-spot-[0-1]", "train-spot-[0-1], then train-ondemand-[0-1]")
    lines = [json.loads(line) for line in (disturbed / "slurm_stacks_progress").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, EPOCHS + 1)), "no epoch twice"


def test_the_stack_has_the_pools_that_the_walk_through_names() -> None:
    config = load_file(EXAMPLE / "Pulumi.pools.yaml", ROOT)
    cluster = design(config, catalog())
    assert [p.name for p in cluster.pools_of("short")] == ["train-spot", "train-ondemand"]
    text = (EXAMPLE / "show.sh").read_text()
    nodes = set(re.findall(r"train-\w+-[0-9]", text))
    assert nodes == set(cluster.partitions[0].nodes())
    assert f"capacity.{cluster.partitions[0].label}=0" in text
