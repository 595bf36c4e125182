"""Describes the state of a benchmark's job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.logs.text import printable
from node.slurm.phases import Phase, phase
from node.slurm.reasons import in_words

MOST_VALUES = 6
"""The number of values that fit in one line."""


def situation(seen: Mapping[str, Any]) -> str:
    """Return one line on a job.

    Args:
        seen: `job` and `progress` as `node.benchmark.Run.show` returns them; the job must exist.
    """
    job, progress = seen["job"], seen["progress"]
    nodes = f" on {job['nodes']}" if job["nodes"] else ""
    doing = phase(job["state"], nodes=bool(job["nodes"]))
    if doing is Phase.WAITING:
        return f"waits: {printable(in_words(job['cause']))}"
    if doing is Phase.STARTING:
        return f"nodes are starting: {job['nodes']}"
    if progress is not None and "script" in progress:
        figures = values(progress.get("values") or {})
        return f"{job['state'].lower()}{nodes}: {figures or printable(progress['script'])}"
    if progress is None or not progress.get("epoch"):
        return f"{job['state'].lower()}{nodes}: the training starts"
    return (
        f"{job['state'].lower()}{nodes}: epoch {progress['epoch']} of {progress['epochs']}, "
        f"loss {progress['loss']:.4f}, accuracy {progress['accuracy']:.4f}"
    )


def ending(seen: Mapping[str, Any], gone: str = "GONE") -> str:
    """Return how a job ended: Slurm's state, and a user's program's exit status, time and cost.

    Args:
        seen: As for `situation`; the job may be missing.
        gone: What to say of a job that Slurm does not know any more.
    """
    state = seen["job"]["state"] if seen["job"] else "GONE"
    state = gone if state == "GONE" else state
    progress = seen["progress"]
    if not isinstance(progress, Mapping) or "exit_status" not in progress:
        return state
    text = f"{state}: {printable(progress['script'])}, exit status {progress['exit_status']}"
    text += f", after {progress['seconds']:.1f} s"
    return text if progress["cost_usd"] is None else f"{text}, {progress['cost_usd']:.4f} USD"


def values(found: Mapping[str, Any], most: int = MOST_VALUES) -> str:
    """Return what a user's program says of itself in one line: `epoch 3 of 8, loss 0.1234`.

    Args:
        found: Names with numbers, texts or booleans.
        most: How many of them are shown; the first ones.
    """
    texts = []
    for name, value in found.items():
        if value is None or (name.endswith("s") and name[:-1] in found):
            continue  # `epochs` is shown beside `epoch`
        text = f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        if (all_of := found.get(f"{name}s")) is not None:
            text += f" of {all_of}"
        texts.append(printable(text))
    more = ["…"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])
