"""The settings of a local cluster, from its run directory alone, even if its `up` failed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from infra.program import owner
from node.design.model import PROCESS, Settings, Site
from node.design.published import read_settings
from node.design.sites import LocalSite
from operations.access import StackUp
from operations.local import machine_access
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from node.design.model import ClusterDesign


def settings(up: StackUp) -> Settings | None:
    """Return the settings of the machines, else the published ones, else those of the stack file.

    Returns:
        `None` if nothing of a cluster is in the run directory, or none of the three exists.
    """
    run = machine_access.run_directory(up)
    if not owner.holds_a_cluster(run.path):
        return None
    if run.containers:
        published = _published(run)
        design = _design(up) or (published.design if published else None)
        # A container's disk has the same layout as the files of process machines.
        if design is None:
            return None
        design = dataclasses.replace(design, isolation=PROCESS)
        return Settings(design, _site(run, run.disk("controller")))
    if (own := _read(run.path / "code" / "settings.json") or _published(run)) is not None:
        return own
    design = _design(up)
    return None if design is None else Settings(design, _site(run, run.path))


def _read(file: Path) -> Settings | None:
    try:
        return read_settings(file)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _design(up: StackUp) -> ClusterDesign | None:
    """Return the design of the stack file; `None` if the file has mistakes."""
    return None if up.config is None else up.design


def _site(run: RunDirectory, root: Path) -> Site:
    return Site(
        root=str(root),
        user="",
        controller_host="localhost",
        controller_address="127.0.0.1",
        apps=str(run.apps),
        shared=str(run.shared),
        cloud=LocalSite(str(run.agent_socket)),
    )


def _published(run: RunDirectory) -> Settings | None:
    try:
        return _read(run.bucket / str(run.current()["settings"]["key"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
