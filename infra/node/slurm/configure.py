"""Writing slurm.conf and friends on the controller: at its boot, and each time that slurmctld starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from infra.node.codec import from_json
from infra.node.model import Folders, Settings
from infra.node.slurm import conf, hardware, version

Place = Callable[[Path, bytes], object]
"""Puts a file into its place, whole or not at all."""


def configure(settings: Settings, release: str, place: Place) -> hardware.Lines:
    """Write the configuration for this release of Slurm.

    Nodes whose hardware the stack file has changed keep their lines as long as they are in use.
    """
    folders = Folders(settings)
    etc, lib = Path(str(folders.etc)), Path(str(folders.lib))
    deviation, record = hardware.lines(settings.design, release, lib)
    place(lib / hardware.RECORD, hardware.text(record).encode())
    for name, content in conf.render(settings, version.parse(release), deviation).items():
        place(etc / name, content.encode())
    hardware.done(lib)
    return deviation


def main(settings_file: str) -> int:
    """Before slurmctld starts again, by whoever keeps it running."""
    from infra.node.bootstrap import files

    settings = from_json(Settings, json.loads(Path(settings_file).read_text()))
    record = hardware.read(Path(str(Folders(settings).lib)))
    if record is not None:
        configure(settings, record.release, files.place)
    return 0
