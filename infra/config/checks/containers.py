"""Checks of containers for jobs."""

from __future__ import annotations

from collections.abc import Sequence

from infra.config.checks.context import CLUSTER, MISSING, Context
from infra.config.checks.jobs import check_source
from infra.config.containers import ContainersConfig, PackageConfig
from infra.config.mistakes import Location

PACKAGES = "the packages of Enroot and of Pyxis, each with source and sha256, or an image that has them"


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
            "write local: {isolation: container}, or remove containers:",
        )
        return
    if containers.runtime == "pyxis":
        _pyxis(c, containers)
        return
    for key in ("packages", "images"):
        if key in containers.model_fields_set:
            c.add(
                (*at, key), "a value", "nothing with runtime oci", f"remove {key}:, or write runtime: pyxis"
            )


def _pyxis(c: Context, containers: ContainersConfig) -> None:
    at = (*CLUSTER, "containers", "packages")
    if not containers.packages and c.sound(at) and not (c.cluster.image and c.cluster.image.id):
        c.add(at, MISSING, PACKAGES, "docs/containers.md says where they come from")
    check_packages(c, containers.packages, at)


def check_packages(c: Context, packages: Sequence[PackageConfig], at: Location) -> None:
    """Report packages that are no Debian packages, that machines cannot fetch, or that are named twice."""
    seen: set[str] = set()
    for index, package in enumerate(packages):
        where = (*at, index, "source")
        if not package.source.endswith(".deb"):
            c.add(where, package.source, "a Debian package: a name that ends in .deb", "")
        else:
            check_source(c, package.source, where)
        if package.sha256 in seen:
            c.add((*at, index, "sha256"), package.sha256, "another hash than the packages before it", "")
        seen.add(package.sha256)
