"""A cluster that is up: its published design, and access to its jobs."""

from __future__ import annotations

import json
from dataclasses import replace

from cli.changes.decision import ClusterControl
from cli.clouds import ssh_access
from cli.clouds.cloud import ALIVE, Cloud
from cli.ssh import openssh
from infra.errors import UserError
from infra.program.stack import Stack
from node.model import ClusterDesign
from node.published import parse_settings


def published(cloud: Cloud) -> ClusterDesign | None:
    """The published design that a cluster's machines use; `None` if nothing is published (yet).

    Raises:
        UserError: There are no credentials, the cloud refuses, or another release published the design.
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
        return None if settings is None else parse_settings(settings).design
    except (ValueError, KeyError, TypeError) as error:
        cluster = cloud.place.cluster
        raise UserError(f"what was published of cluster {cluster} cannot be read: {error}") from error


def reach(stack: Stack, design: ClusterDesign, cloud: Cloud) -> ClusterControl:
    """Access to the cluster's Slurm over SSH to the login machine.

    Args:
        design: The design of the cluster that is up.
    """

    def run(line: str, seconds: float) -> str:
        login = ssh_access.find(stack, design, cloud)
        # A single attempt, because the caller goes on without the answer.
        return openssh.run(replace(login.target, patience=0), line, seconds=seconds)

    return ClusterControl(run, sudo=True)
