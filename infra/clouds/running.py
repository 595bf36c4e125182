"""A cluster that is up: what was published of it, the jobs that run, and that no further one starts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from infra.clouds import entrance
from infra.clouds.cloud import ALIVE, Cloud
from infra.errors import NotUpError, UserError
from infra.node.codec import from_json
from infra.node.model import ClusterDesign, Settings
from infra.ssh import openssh

SECONDS = 40.0
"""For one question to the head, which may be dead."""
MOST_LISTED = 20
STATES = "RUNNING,CONFIGURING,COMPLETING,SUSPENDED,STOPPED"
SQUEUE = f"squeue --noheader --states={STATES} --format='%i|%u|%P|%N|%T|%j'"


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    user: str
    partition: str
    nodes: str
    state: str
    name: str

    def line(self) -> str:
        return f"job {self.id} {self.name} ({self.user}, {self.state} on {self.nodes or self.partition})"


def published(cloud: Cloud) -> ClusterDesign | None:
    """The design that the machines of a cluster know; None: there is none, or not yet.

    Raises:
        UserError: there are no credentials, the cloud refuses, or another release of this published it.
    """
    there = cloud.machines(*ALIVE, host="controller")
    bucket = next((machine.bucket for machine in there if machine.bucket is not None), None)
    current = None if bucket is None else cloud.read(bucket, "current.json")
    if bucket is None or current is None:
        return None
    try:
        named = json.loads(current)
        if "settings" not in named:
            return None
        settings = cloud.read(bucket, named["settings"]["key"])
        return None if settings is None else from_json(Settings, json.loads(settings)).design
    except (ValueError, KeyError, TypeError) as error:
        cluster = cloud.place.cluster
        raise UserError(f"what was published of cluster {cluster} cannot be read: {error}") from error


def running(project: Path, stack: str, design: ClusterDesign, cloud: Cloud) -> list[Job]:
    """The jobs that have machines.

    Args:
        design: of the cluster that is up.

    Raises:
        UserError: the cluster does not answer.
    """
    return parse(_ask(project, stack, design, cloud, SQUEUE))


def hold(project: Path, stack: str, design: ClusterDesign, cloud: Cloud) -> list[Job]:
    """Have no further job start, then tell which run.

    Raises:
        UserError: the cluster does not answer.
    """
    names = shlex.join(partition.name for partition in design.partitions)
    # DOWN and not DRAIN: who submits meanwhile is not refused.
    line = f"for name in {names}; do sudo -n scontrol update PartitionName=$name State=DOWN || exit 1; done"
    return parse(_ask(project, stack, design, cloud, f"{line}; {SQUEUE}"))


def drain(project: Path, stack: str, design: ClusterDesign, cloud: Cloud, say: Callable[[str], None]) -> None:
    """`hold` with words, whatever happens: a cluster comes down also when it does not answer."""
    try:
        jobs = hold(project, stack, design, cloud)
    except NotUpError:
        return
    except UserError as error:
        say(silent(error))
        return
    say(
        f"no further job starts (should you keep the cluster: `./cluster exec --stack {stack} -- sudo "
        "scontrol reconfigure` lets them start again)"
    )
    if jobs:
        say("\n".join(["these jobs run and end with the cluster:", *listed(jobs)]))


def silent(error: UserError) -> str:
    """What a destroy says of a cluster that cannot be asked."""
    why = str(error).splitlines()[0]
    return f"the cluster does not answer, so nobody knows which jobs run ({why}); it is ended all the same"


def listed(jobs: list[Job]) -> list[str]:
    more = [f"  and {len(jobs) - MOST_LISTED} more"] if len(jobs) > MOST_LISTED else []
    return [*(f"  {job.line()}" for job in jobs[:MOST_LISTED]), *more]


def parse(text: str) -> list[Job]:
    """`SQUEUE`'s lines; a name may have its separator."""
    return [Job(*line.strip().split("|", 5)) for line in text.splitlines() if line.count("|") >= 5]


def _ask(project: Path, stack: str, design: ClusterDesign, cloud: Cloud, line: str) -> str:
    login = entrance.find(project, stack, design, cloud)
    # One attempt: who asks goes on without the answer.
    return openssh.run(replace(login.target, patience=0), line, seconds=SECONDS)
