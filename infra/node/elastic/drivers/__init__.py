"""One driver a cloud. Cloud clients are imported by the driver that needs them and nowhere else."""

from __future__ import annotations

from infra.node.elastic.driver import Driver
from infra.node.model import Settings


def load(settings: Settings) -> Driver:
    """The driver of the design's provider."""
    provider = settings.design.provider
    if provider == "local":
        from infra.node.elastic.drivers.local import LocalDriver

        return LocalDriver(settings)
    if provider == "aws":
        from infra.node.elastic.drivers.ec2 import Ec2Driver

        return Ec2Driver(settings)
    if provider == "gcp":
        from infra.node.elastic.drivers.gce import GceDriver

        return GceDriver(settings)
    raise ValueError(f"no elastic driver for provider {provider!r}; known: local, aws, gcp")
