"""The drivers, one for each cloud. Only the driver of a cloud imports what its client needs."""

from __future__ import annotations

from pathlib import Path

from node.bootstrap import report_server
from node.design.folders import Folders
from node.design.model import PROCESS, Settings
from node.design.sites import LocalSite
from node.elastic.driver import Driver


def load(settings: Settings) -> Driver:
    """Return the driver of the design's provider."""
    provider = settings.design.provider
    if provider == "local":
        from node.elastic.drivers.local import LocalDriver

        return LocalDriver(settings)
    if provider == "aws":
        from node.elastic.drivers.ec2.driver import Ec2Driver

        return Ec2Driver(settings)
    if provider == "gcp":
        from node.elastic.drivers.gce.driver import GceDriver

        return GceDriver(settings)
    raise ValueError(f"no elastic driver for provider {provider!r}; known: local, aws, gcp")


def reports(settings: Settings) -> Path:
    """Return the folder on the controller with the nodes' boot reports."""
    if settings.design.isolation == PROCESS and isinstance(settings.site.cloud, LocalSite):
        # Processes are all of one user, and leave their reports in the bucket's folder, beside the agent's.
        return Path(settings.site.cloud.socket).parents[1] / "bucket" / "boot"
    return Path(str(report_server.folder(Folders(settings))))


def newest_report(folder: Path) -> int:
    """Return when a report was last written, in nanoseconds of the file system's clock; 0 if none was."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
