"""What the slurmds of a job's nodes say of the job, which is why it could not even start there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.logs.explanations import started_wrongly
from node.logs.filters import of_others, on_node
from node.logs.job_facts import could_not_start
from node.logs.sources import LogFile, Note, Source
from node.slurm.hostlist import expand, fold
from node.slurm.states import JobState

MOST_NODES = 4
"""The greatest number of a job's nodes whose slurmds are asked for it."""


def logs_here(log: Path, jobs: Sequence[JobState]) -> list[Source]:
    """Return the lines on jobs in the logs of their nodes' slurmds, which are on this machine.

    Args:
        log: The folder of logs.
        jobs: The jobs.
    """
    sources: list[Source] = []
    for node in _nodes(jobs)[:MOST_NODES]:
        path = log / f"slurmd-{node}.log"
        heading = f"slurmd of {node}, on this job"
        try:
            owner = path.stat().st_uid
        except OSError:
            continue
        if LogFile(heading, path, None, of_others(owner)).last(1):
            why = "others' jobs ran there too, and what they wrote may look like lines on this job"
            sources.append(Note(heading, [f"(not shown: {why}: {path})"]))
            continue
        lines = LogFile(heading, path, None, on_node(job.id for job in jobs))
        sources += [lines, *started_wrongly(LogFile(heading, path, None, on_node(job.id for job in jobs)))]
    return sources


def logs_on_nodes(jobs: Sequence[JobState], log: str, stack: str) -> list[Source]:
    """Return where the lines are that say why jobs could not start, if the nodes have logs of their own.

    Args:
        log: The path of slurmd's log on a node.
        stack: The stack's name.
    """
    failed = [job for job in jobs if could_not_start(job)]
    if not failed:
        return []
    # The host of a job without a script is what the submitting program sends, which may be anything.
    job = failed[-1]
    node = job.batch_host if job.batch_host in job.nodes else job.nodes[0]
    words = f"--nodelist={node} grep -F '[{job.id}.' {log}"
    show = f"./cluster exec --stack {stack} -- srun {words}"
    return [Note("slurmd, on this job", [f"(it is on {fold(job.nodes)}, while it is up: `{show}`)"])]


def _nodes(jobs: Sequence[JobState]) -> list[str]:
    """Return the jobs' nodes in numeric order."""
    return expand(fold({node for job in jobs for node in job.nodes}))
