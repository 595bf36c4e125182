"""A resource of the stack that waits until the head's machines have booted with what is published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_command as command

from infra.clouds import commands
from infra.clouds.commands import WaitRequest
from node.model import ClusterDesign


def ready(
    name: str,
    module: str,
    design: ClusterDesign,
    bucket: pulumi.Output[str],
    published: pulumi.Output[str],
    machines: Mapping[str, pulumi.Output[str]],
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> command.local.Command:
    """Waits when the resource is created, and again when a machine or what is published changes.

    Args:
        module: The module of the provider's operations.
        bucket: The bucket's name.
        published: The content of `current.json`.
        machines: host -> the id of its machine.
    """
    line = commands.line(module, "wait", design)
    return command.local.Command(
        name,
        create=line,
        update=line,
        stdin=bucket.apply(lambda known: WaitRequest.of(design, known).text()),
        environment={
            "PUBLISHED": published,
            **{f"MACHINE_{host.replace('-', '_').upper()}": id_ for host, id_ in machines.items()},
        },
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after)),
    )


def facts(wait: command.local.Command) -> pulumi.Output[dict[str, Any]]:
    """What the wait has found out: `host_keys`, `login_user`, `scheduler_version`."""
    return wait.stdout.apply(parse)


def parse(printed: str) -> dict[str, Any]:
    """What the wait printed, as values. A plan waits for nothing and gets a placeholder for each value."""
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        if not printed.startswith("<"):
            raise
        prefix = printed[:-1]
        found = {name: f"{prefix}.{name}>" for name in ("login_user", "scheduler_version")}
        found["host_keys"] = [f"{prefix}.host_keys[0]>"]
    return found
