"""A cluster that is up: what was published of it, and the way to its jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from infra.changes.reach import Reach
from infra.clouds import entrance
from infra.clouds.cloud import ALIVE, Cloud
from infra.errors import UserError
from infra.node.codec import from_json
from infra.node.model import ClusterDesign, Settings
from infra.ssh import openssh


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


def reach(project: Path, stack: str, design: ClusterDesign, cloud: Cloud) -> Reach:
    """The way to the login machine, by SSH.

    Args:
        design: of the cluster that is up.
    """

    def run(line: str, seconds: float) -> str:
        login = entrance.find(project, stack, design, cloud)
        # One attempt: who asks goes on without the answer.
        return openssh.run(replace(login.target, patience=0), line, seconds=seconds)

    return Reach(run, "sudo -n ")
