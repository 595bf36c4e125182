"""What is known of a local cluster from its run directory alone, however far it came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from infra.design import design
from infra.local.site import RunDirectory
from infra.machines import catalog
from infra.node.codec import from_json
from infra.node.model import Settings, Site

if TYPE_CHECKING:
    from infra.config import StackConfig


def settings(project: Path, config: StackConfig) -> Settings | None:
    """The cluster's settings: those that its machines run with, else those that are published for them, else
    what the stack file alone says. None: there is no run directory."""
    run = RunDirectory.of(project, config.stack)
    if not run.path.exists():
        return None
    for file in (run.path / "code" / "settings.json", _published(run.bucket)):
        try:
            return from_json(Settings, json.loads(file.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    place = Site(
        root=str(run.path),
        user="",
        controller_host="localhost",
        controller_address="127.0.0.1",
        apps=str(run.apps),
        shared=str(run.shared),
        driver={"socket": str(run.agent_socket)},
    )
    return Settings(design(config, catalog()), place)


def _published(bucket: Path) -> Path:
    try:
        return bucket / str(json.loads((bucket / "current.json").read_text())["settings"]["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return bucket / "nothing"
