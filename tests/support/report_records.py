"""Result records as a run writes them, kept in the test's own state folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli import results
from cli.commands.report.runs import Run, of
from workload.result import mistakes

DIGEST = "fd5435023d5781f4ef14651ed4caba7eb89e667270c922e20915532e14b2e459"


def record(nodes: int = 2, seconds: float = 64.0, **changes: Any) -> dict[str, Any]:
    """Return a valid record of `nodes` workers that trained for `seconds`."""
    epochs = changes.get("epochs", 8)
    made: dict[str, Any] = {
        "apiVersion": "slurm-stacks/result/v1",
        "stack": "test",
        "job_id": "7",
        "partition": "debug",
        "machine": "n1-standard-2",
        "nodes": nodes,
        "workers": nodes,
        "gpus_per_node": 0,
        "devices": ["/device:CPU:0"],
        "profile": "sync",
        "data": "mnist",
        "epochs": epochs,
        "global_batch": 64 * nodes,
        "seconds_total": seconds + 10,
        "seconds_train": seconds,
        "images_per_second": 60000 * epochs / seconds if seconds else 0.0,
        "loss": 0.01,
        "accuracy": 0.99,
        "test_accuracy": 0.98,
        "history": [
            {"epoch": e, "loss": 0.4 / e, "accuracy": 1 - 0.1 / e, "seconds": seconds / epochs}
            for e in range(1, epochs + 1)
        ],
        "start_latency_seconds": 1.5,
        "restarts": 0,
        "digest": DIGEST,
        "versions": {"python": "3.11.7", "tensorflow": "2.21.0"},
        "cost_usd": 0.02,
        "seed": 0,
        "learning_rate": 0.2,
        "average_every": None,
        "cores": nodes,
        "cores_shared": False,
        "cores_others": 0.02,
        "step_seconds": 0.04,
        "exchange_seconds": None,
        "phases": {"import": 5.5, "train": seconds},
    } | changes
    assert mistakes(made) == []
    return made


def local(nodes: int = 2, seconds: float = 60.0, **changes: Any) -> dict[str, Any]:
    """Return a record of the local stack: synthetic digits, two epochs, a core for each node."""
    own = {"machine": "local.small", "data": "digits-synthetic", "epochs": 2, "cost_usd": 0.0}
    return record(nodes, seconds, **{**own, **changes})


def keep(stack: str, *records: dict[str, Any]) -> list[Path]:
    """Keep results of a stack, each one minute after the last."""
    folder = results.folder(stack)
    folder.mkdir(parents=True, exist_ok=True)
    there = len(list(folder.iterdir()))
    paths = []
    for number, record in enumerate(records, there):
        path = folder / f"20261121T12{number:02d}00Z-job-{record['job_id']}-{number:08x}.json"
        path.write_text(json.dumps({"checkout": None, "result": record}))
        paths.append(path)
    return paths


def runs(
    *records: dict[str, Any], stack: str = "test", checkout: str | None = None, several: bool = False
) -> list[Run]:
    """Return the records as runs of the report, without files."""
    return [
        of(
            results.Kept(Path(f"20261121T12{n:02d}00Z-job-7-0.json"), record),
            stack,
            checkout,
            several=several,
        )
        for n, record in enumerate(records)
    ]
