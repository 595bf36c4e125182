"""What is known of a local cluster from its run directory alone, however far it came."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from infra.design import design
from infra.local.cloud import kind
from infra.local.site import RunDirectory
from infra.machines import catalog
from infra.node.codec import from_json
from infra.node.model import Settings, Site
from infra.provider import StackUp

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.node.model import ClusterDesign


def settings(project: Path, config: StackConfig | StackUp) -> Settings | None:
    """The cluster's settings: those that its machines run with, else those that are published for them, else
    what the stack file alone says. None: there is no run directory, or nothing says it."""
    run = RunDirectory.of(project, config.stack)
    if not run.path.exists():
        return None
    if run.containers:
        published = _read(_published(run.bucket))
        made = _design(config) or (published.design if published else None)
        # Its disk lies as the files of process machines do.
        if made is None:
            return None
        made = dataclasses.replace(made, machines=kind.PROCESS)
        return Settings(made, _site(run, run.disk("controller")))
    for file in (run.path / "code" / "settings.json", _published(run.bucket)):
        if (found := _read(file)) is not None:
            return found
    made = _design(config)
    return None if made is None else Settings(made, _site(run, run.path))


def _read(file: Path) -> Settings | None:
    try:
        return from_json(Settings, json.loads(file.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _design(config: StackConfig | StackUp) -> ClusterDesign | None:
    """What the stack file says, where it can be used."""
    return None if isinstance(config, StackUp) else design(config, catalog())


def _site(run: RunDirectory, root: Path) -> Site:
    return Site(
        root=str(root),
        user="",
        controller_host="localhost",
        controller_address="127.0.0.1",
        apps=str(run.apps),
        shared=str(run.shared),
        driver={"socket": str(run.agent_socket)},
    )


def _published(bucket: Path) -> Path:
    try:
        return bucket / str(json.loads((bucket / "current.json").read_text())["settings"]["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return bucket / "nothing"
