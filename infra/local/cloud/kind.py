"""Which kind of machines a local cluster has: written as its cloud is made, read by all that deal with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from infra.local.cloud.machines import Maker, ProcessMaker

PROCESS, NAMESPACE = "process", "namespace"
SLURM_USER = "slurm"
"""SlurmUser of namespace machines that root makes; the distribution's package of slurmctld brings it."""


def write(run: Path, kind: str) -> None:
    draft = _file(run).with_suffix(".new")
    draft.write_text(json.dumps({"machines": kind}))
    draft.replace(_file(run))


def read(run: Path) -> str:
    """`process` where nothing is known."""
    try:
        return str(json.loads(_file(run).read_text())["machines"])
    except (OSError, ValueError, KeyError, TypeError):
        return PROCESS


def rootless() -> bool:
    """Whether machines are made in a user namespace of this user's."""
    return os.geteuid() != 0


def maker(run: Path) -> Maker:
    if read(run) == NAMESPACE:
        from infra.local.cloud.namespaces import NamespaceMaker

        return NamespaceMaker(run, rootless=rootless())
    return ProcessMaker(run, str(run / "python3"))


def _file(run: Path) -> Path:
    return run / "cloud" / "kind.json"
