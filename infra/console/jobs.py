"""Where a benchmark's job is, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.node.slurm.reasons import in_words


def situation(seen: Mapping[str, Any]) -> str:
    """One line on a job.

    Args:
        seen: `job`, which there is, and `progress`, as `infra.node.benchmark.Run.show` has them.
    """
    job, progress = seen["job"], seen["progress"]
    nodes = f" on {job['nodes']}" if job["nodes"] else ""
    if job["state"] == "PENDING":
        return f"waits: {in_words(job['cause'])}"
    if job["state"] == "CONFIGURING":
        return f"nodes are starting: {job['nodes']}"
    if progress is None or not progress.get("epoch"):
        return f"{job['state'].lower()}{nodes}: the training starts"
    return (
        f"{job['state'].lower()}{nodes}: epoch {progress['epoch']} of {progress['epochs']}, "
        f"loss {progress['loss']:.4f}, accuracy {progress['accuracy']:.4f}"
    )
