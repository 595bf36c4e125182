"""The drivers, one for each cloud. Only the driver of a cloud imports what its client needs."""

from __future__ import annotations

from node.design.model import Settings
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
