"""The release of Slurm that a stack gets or runs, and what is open in it, in lines for users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.doctor.finding import Finding, fine, warns
from infra import slurm_releases
from infra.config import StackConfig, distributions
from infra.config.cluster import ClusterConfig
from node.model import ClusterDesign
from node.slurm import packaged

CLOUD_CURE = (
    "image: {source: debian-13} has the fix, where the stack needs nothing that only ubuntu-24.04 has"
)
LOCAL_CURE = "local: {isolation: container, suite: trixie} has the fix"


def planned(design: ClusterDesign) -> tuple[str, list[str]]:
    """Return the line that names the Slurm that a stack gets, and a line for each advisory open in it.

    On the local stack with processes it is this machine's, installed or to be installed.
    """
    if design.scheduler != "slurm":
        return "", []
    version = packaged.version() if design.isolation == "process" else None
    runtime = design.containers.runtime if design.containers is not None else None
    uses = {"accounting": design.slurm.accounting, str(runtime): True}
    return _lines(design.provider, uses, version, _suite(design))


def running(config: StackConfig | None, status: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the same lines for the Slurm that a cluster runs, by its status.

    Args:
        config: `None` if the stack file has mistakes: every open advisory is then named.
    """
    there = status.get("slurm") or {}
    uses = None if config is None else _uses(config.cluster)
    return _lines(config.provider if config else None, uses, there.get("version"), there.get("suite"))


def findings(design: ClusterDesign) -> Iterator[Finding]:
    """Return the same lines as the doctor's findings."""
    name, lines = planned(design)
    if name:
        yield fine("slurm.release", name)
    for line in lines:
        found, _, cure = line.rpartition("; ")
        yield warns("slurm.advisory", found, cure)


def _lines(
    provider: str | None, uses: Mapping[str, bool] | None, version: str | None, suite: str | None
) -> tuple[str, list[str]]:
    table = slurm_releases.table()
    package = table.package_of_suite(suite)
    if package is None and version is None:
        return "", []
    if package is None:
        package = slurm_releases.Package(title=suite or "this machine", suite="", version=str(version))
    cure = LOCAL_CURE if provider == "local" else CLOUD_CURE
    return table.described(package, version), table.open_lines(version or package.version, cure, uses)


def _uses(cluster: ClusterConfig) -> dict[str, bool]:
    runtime = cluster.containers.runtime if cluster.containers is not None else None
    return {"accounting": bool(cluster.slurm.accounting), str(runtime): True}


def _suite(design: ClusterDesign) -> str | None:
    if design.provider != "local":
        return distributions.of(design.image.source).suite
    return design.image.source or packaged.suite()
