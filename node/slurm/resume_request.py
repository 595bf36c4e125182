"""What Slurm asks of ResumeProgram: the nodes of a call, and the jobs that wait for them.

Slurm's traps (docs/internals/slurm_traps.md): resume-file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.slurm.hostlist import Expander


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """A job that waits for nodes of one ResumeProgram call.

    Attributes:
        nodes: The nodes of the job that this call starts.
        nodes_alloc: All nodes of the job, with those that are up. `None` in 22.05, which does not say.
    """

    job_id: int
    nodes: tuple[str, ...]
    nodes_alloc: tuple[str, ...] | None = None
    partition: str | None = None
    features: str | None = None
    oversubscribe: str | None = None
    reservation: str | None = None
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The content of `SLURM_RESUME_FILE`: the nodes of a call, and the jobs that wait for them.

    A node without a job was requested by `scontrol update … state=power_up`.
    """

    all_nodes: tuple[str, ...]
    jobs: tuple[ResumeJob, ...] = ()


def parse_resume(text: str) -> ResumeRequest:
    """Parse the resume file of any release. 23.02 renamed `all_nodes` and a job's `nodes` to `…_resume`.

    Raises:
        ValueError: The text is not JSON, or not a resume file.
    """
    try:
        value = json.loads(text)
        expander = Expander()
        return ResumeRequest(
            expander(_either(value, "all_nodes_resume", "all_nodes")),
            tuple(_job(job, expander) for job in value.get("jobs", [])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"resume file {text[:200]!r}: {error}") from error


def _either(value: Mapping[str, Any], new: str, old: str) -> str:
    text = value[new] if new in value else value[old]
    if not isinstance(text, str):
        raise TypeError(f"{new}: a host list is expected, not {text!r}")
    return text


def _job(value: Mapping[str, Any], expander: Expander) -> ResumeJob:
    alloc = value.get("nodes_alloc")
    return ResumeJob(
        job_id=int(value["job_id"]),
        nodes=expander(_either(value, "nodes_resume", "nodes")),
        nodes_alloc=None if alloc is None else expander(alloc),
        # Slurm writes unset fields as null or as an empty text.
        **{
            key: value.get(key) or None
            for key in ("partition", "features", "oversubscribe", "reservation", "extra")
        },
    )
