"""Which engine runs the Pulumi program, for the few places that must know."""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

Mode = Literal["pulumi", "embedded", "plan"]
"""`pulumi` is the real engine, and `embedded` is the project's own runner. In a `plan` nothing is executed,
and the program must change nothing either."""
UNKNOWN = "<"
"""The beginning of a value that a `plan` cannot know (`placeholders`)."""

MODE: ContextVar[Mode] = ContextVar("slurm_stacks_runner_mode", default="pulumi")
FOLDER: ContextVar[Path | None] = ContextVar("slurm_stacks_program_folder", default=None)
"""The folder of the program that a plugin or a command works for. All clusters of a program have the same."""

KEPT_VARIABLE = "SLURM_STACKS_KEPT_BENCHMARK"
"""The environment variable that holds `KEPT` as JSON, for the program under the real engine."""
KEPT: ContextVar[dict[str, Any] | None] = ContextVar("slurm_stacks_kept_benchmark", default=None)
COMPONENT = "slurm-stacks:index:Benchmark"


def kept_benchmark() -> dict[str, Any] | None:
    """Return the outputs of a benchmark that stays as it is (`up --no-benchmark`).

    The program then leaves the benchmark to the engine and exports these outputs again (`of_benchmark`).
    `None` means that the program declares the benchmark.
    """
    text = os.environ.get(KEPT_VARIABLE)
    return json.loads(text) if text else KEPT.get()


def of_benchmark(outputs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the benchmark's part of a stack's outputs.

    It is `benchmark_result`, and the `benchmark` of `cluster`.
    """
    published = outputs or {}
    part = {"benchmark_result": published["benchmark_result"]} if "benchmark_result" in published else {}
    cluster = published.get("cluster")
    if isinstance(cluster, dict) and cluster.get("benchmark") is not None:
        part["benchmark"] = cluster["benchmark"]
    return part


def is_benchmarks(urn: str) -> bool:
    """Return whether a resource is the benchmark component or a part of it."""
    return COMPONENT in urn.split("::")[2].split("$")


def current() -> Mode:
    """Return the mode of the calling program: `pulumi` unless one of our own runners started it."""
    return MODE.get()


def folder() -> Path:
    """Return the program's folder, from which a configuration's paths of scripts and trainings lead."""
    return FOLDER.get() or Path(__file__).resolve().parents[2]
