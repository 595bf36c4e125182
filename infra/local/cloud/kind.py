"""Which kind of machines a local cluster has: written as its cloud is made, read by all that deal with it."""

from __future__ import annotations

import json
from pathlib import Path

from infra.local.cloud.machines import Maker, ProcessMaker
from infra.node.bootstrap import files

PROCESS, CONTAINER = "process", "container"
SLURM_USER = "slurm"
"""SlurmUser of container machines."""


def write(run: Path, kind: str) -> None:
    files.place(_file(run), json.dumps({"machines": kind}).encode())


def read(run: Path) -> str:
    """`process` where nothing is known."""
    try:
        return str(json.loads(_file(run).read_text())["machines"])
    except (OSError, ValueError, KeyError, TypeError):
        return PROCESS


def maker(run: Path) -> Maker:
    if read(run) == CONTAINER:
        from infra.local.cloud.containers import ContainerMaker

        return ContainerMaker(run)
    return ProcessMaker(run, str(run / "python3"))


def _file(run: Path) -> Path:
    return run / "cloud" / "kind.json"
