"""The wait, as a resource of a stack: until the head's machines have booted what is published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_command as command

from infra.clouds import operations
from infra.clouds.boot import Wish
from infra.node.model import ClusterDesign


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
    """Waits as it is created, and again when what is published or a machine changes.

    Args:
        module: the provider's operations.
        bucket: its name.
        published: the content of `current.json`.
        machines: host -> its machine's id.
    """
    line = operations.line(module, "wait", design)
    return command.local.Command(
        name,
        create=line,
        update=line,
        stdin=bucket.apply(lambda known: Wish.of(design, known).text()),
        environment={
            "PUBLISHED": published,
            **{f"MACHINE_{host.replace('-', '_').upper()}": id_ for host, id_ in machines.items()},
        },
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after)),
    )


def facts(waited: command.local.Command) -> pulumi.Output[dict[str, Any]]:
    """What the wait has found: `host_keys`, `login_user`, `scheduler_version`."""
    return waited.stdout.apply(parse)


def parse(printed: str) -> dict[str, Any]:
    """What the wait printed; in a plan, which waits for nothing, a placeholder for each fact of it."""
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        if not printed.startswith("<"):
            raise
        mark = printed[:-1]
        found = {name: f"{mark}.{name}>" for name in ("login_user", "scheduler_version")}
        found["host_keys"] = [f"{mark}.host_keys[0]>"]
    return found
