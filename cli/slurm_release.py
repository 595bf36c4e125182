"""The release of Slurm that a stack gets or runs, and what is open in it, in lines for users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.hints import hint
from infra import slurm_releases
from infra.config import StackConfig, accounting, distributions
from infra.instance_types.catalog import catalog
from node.bootstrap.vm.slurm_packages import elsewhere
from node.design.model import ClusterDesign
from node.slurm import packaged
from operations.access import StackUp
from operations.local import system_packages

CLOUD_CURE = (
    "slurm: {source: debian-13} with image: {bake: true} has the fix, and so has image: {source: debian-13} "
    "where the stack needs nothing that only ubuntu-24.04 has"
)
LOCAL_CURE = "local: {isolation: container, suite: trixie} has the fixes"


def planned(design: ClusterDesign) -> tuple[str, list[str]]:
    """Return the line that names the Slurm that a stack gets, and a line for each advisory open in it.

    On the local stack with processes it is this machine's, installed or to be installed.
    """
    if design.scheduler != "slurm":
        return "", []
    if design.slurm.packages or design.slurm.repository is not None:
        return "Slurm of your own packages: status names the release once they are installed", []
    version = packaged.version() if design.isolation == "process" else None
    runtime = design.containers.runtime if design.containers is not None else None
    uses = {"accounting": design.slurm.accounting, str(runtime): True}
    table, suite = slurm_releases.table(), _suite(design)
    package = table.packages[design.slurm.source] if design.slurm.source else table.package_of_suite(suite)
    if version is None and package is not None:
        version = package.version
    return ("", []) if version is None else _lines(design.provider, uses, version, suite)


def without_pmix(design: ClusterDesign) -> list[str]:
    """Return the line of a plan where the stack's Slurm is built without PMIx, which no cloud's is."""
    if design.provider != "local" or elsewhere(design.slurm):
        return []
    package = slurm_releases.table().package_of_suite(_suite(design))
    boots = design.isolation != "process"
    lacks = package is not None and not package.pmix if boots else system_packages.has_no_pmix()
    how = "docs/clients.md says how MPI's programs start"
    return [f"{system_packages.BUILT_WITHOUT_PMIX}; {how}"] if lacks else []


def running(up: StackUp, status: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the same lines for the Slurm that a cluster runs, by its status.

    Where its stack file has mistakes, or is not here, every open advisory is named.
    """
    slurm = status.get("slurm") or {}
    uses = None if up.config is None else _uses(up.config)
    if (version := slurm.get("version")) is None:
        return "", []
    name, lines = _lines(up.provider, uses, version, slurm.get("suite"))
    if up.provider != "local":
        return name, lines
    # Whoever looks at a cluster of their own many times a day does not read the same lines each time.
    names_them = lines and up.published is None  # `doctor` is about a stack of this checkout
    return name + f" (`{hint('doctor', up.stack.name)}` names them)" * bool(names_them), []


def _lines(
    provider: str, uses: Mapping[str, bool] | None, version: str, suite: str | None
) -> tuple[str, list[str]]:
    table = slurm_releases.table()
    name = table.described(table.package_that_runs(version, suite), version, uses)
    if provider != "local":
        return name, table.open_lines(version, CLOUD_CURE, uses)
    # Its jobs are one person's, as a rule: a line for each would hide what else there is to say.
    ids = [advisory.id for advisory in table.open_in(version, uses)]
    why = "they matter where other people run jobs here, and docs/versions.md says how"
    return name, [f"open in Slurm {version}: {', '.join(ids)}; {why}; {LOCAL_CURE}"] if ids else []


def _uses(config: StackConfig) -> dict[str, bool]:
    cluster, facts = config.cluster, config.catalog(catalog())
    runtime = cluster.containers.runtime if cluster.containers is not None else None
    return {"accounting": accounting.is_on(cluster, facts), str(runtime): True}


def _suite(design: ClusterDesign) -> str | None:
    if design.provider != "local":
        return distributions.of(design.image.source).suite
    return design.image.source or packaged.suite()
