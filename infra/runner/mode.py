"""Which engine the Pulumi program is running under, for the few places that must know."""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from typing import Any, Literal

Mode = Literal["pulumi", "embedded", "plan"]
"""`pulumi`: the real engine. `plan`: nothing is executed, and the program must touch nothing either."""
UNKNOWN = "<"
"""How a value begins that a `plan` cannot know (`placeholders`)."""

MODE: ContextVar[Mode] = ContextVar("slurm_stacks_runner_mode", default="pulumi")


KEPT_VARIABLE = "SLURM_STACKS_KEPT_BENCHMARK"
"""For the real engine's program: `KEPT` as JSON."""
KEPT: ContextVar[dict[str, Any] | None] = ContextVar("slurm_stacks_kept_benchmark", default=None)
COMPONENT = "slurm-stacks:index:Benchmark"


def kept_benchmark() -> dict[str, Any] | None:
    """None: the program declares the benchmark. Else it leaves it to the engine, as it is (`up
    --no-benchmark`), and exports again what the outputs said of it: see `of_benchmark`."""
    text = os.environ.get(KEPT_VARIABLE)
    return json.loads(text) if text else KEPT.get()


def of_benchmark(outputs: dict[str, Any] | None) -> dict[str, Any]:
    """What a stack's outputs say of its benchmark: `benchmark_result`, and `benchmark` of `cluster`."""
    found = outputs or {}
    said = {"benchmark_result": found["benchmark_result"]} if "benchmark_result" in found else {}
    cluster = found.get("cluster")
    if isinstance(cluster, dict) and cluster.get("benchmark") is not None:
        said["benchmark"] = cluster["benchmark"]
    return said


def is_benchmarks(urn: str) -> bool:
    """Whether a resource is the benchmark component, or a part of it."""
    return COMPONENT in urn.split("::")[2].split("$")


def current() -> Mode:
    """The mode of the program that calls this; `pulumi` unless one of our runners started it."""
    return MODE.get()
