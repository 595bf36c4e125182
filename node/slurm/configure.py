"""Writes Slurm's configuration files on the controller: at its boot, and before each start of slurmctld."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.bootstrap import files
from node.folders import Folders
from node.model import Settings
from node.published import read_settings
from node.slurm import conf, hardware, topology, version

WriteFile = Callable[[Path, bytes], object]
"""Writes a file atomically."""


def configure(settings: Settings, release: str, write: WriteFile) -> hardware.Lines:
    """Write the configuration for a release of Slurm.

    Nodes whose hardware was changed in the stack file keep their former lines as long as they are in use.

    Returns:
        The nodes with former lines, and the partitions that accept no jobs yet.

    Raises:
        ValueError: A newer release has written the state that slurmctld would read, or the settings cannot be
            rendered.
    """
    folders = Folders(settings)
    etc, lib = Path(str(folders.etc)), Path(str(folders.elastic))
    if (before := hardware.read(lib)) is not None:
        version.check_takeover(before.release, release)
    deviation, record = hardware.lines(settings.design, release, lib)
    write(lib / hardware.RECORD, hardware.text(record).encode())
    places = topology.read(lib)
    for name, content in conf.render(settings, version.parse(release), deviation, places).items():
        folder = etc
        if name == topology.FILE:
            # The elastic daemon writes this file too, and may not write to /etc.
            folder = lib
            files.link(etc / name, str(lib / name))
        write(folder / name, content.encode())
    hardware.done(lib)
    return deviation


def main(settings_file: str) -> int:
    """Write the configuration. systemd or the machine's init runs this before it restarts slurmctld."""
    settings = read_settings(Path(settings_file))
    record = hardware.read(Path(str(Folders(settings).elastic)))
    if record is not None:
        configure(settings, record.release, files.write)
    return 0
