"""Checks of containers for jobs."""

from __future__ import annotations

from infra.config.checks.context import CLUSTER, Context


def check_containers(c: Context) -> None:
    containers = c.cluster.containers
    if containers is None:
        return
    at = (*CLUSTER, "containers")
    if c.cluster.scheduler == "batch":
        c.add(at, "nothing that applies", "no containers: with scheduler batch", "its own are under `batch`")
        return
    if c.provider == "local" and (c.cluster.local is None or c.cluster.local.isolation == "process"):
        c.add(
            (*at, "runtime"),
            containers.runtime,
            "nothing where machines are processes: they run as you, on this machine's files",
            "have machines of their own (local: {isolation: container}), or remove containers:",
        )
