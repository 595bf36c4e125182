"""Which providers there are."""

from __future__ import annotations

import platform
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.provider import Provider


def load(name: str) -> Provider:
    """The provider of that name.

    Raises:
        UserError: this version does not know it, or it is not for this machine.
    """
    if name == "local" and platform.system() != "Linux":
        raise UserError(
            f"the local stack needs Linux, and this machine's system is {platform.system()}: run it in a "
            "Linux container or virtual machine, or plan one on a cloud: ./cluster plan --stack aws-cpu",
            EXIT_REFUSED,
        )
    if name == "local":
        from infra.local.provider import LocalProvider

        return LocalProvider()
    if name == "aws":
        from infra.aws.provider import AwsProvider

        return AwsProvider()
    if name == "gcp":
        from infra.gcp.provider import GcpProvider

        return GcpProvider()
    raise UserError(
        f"provider {name!r} is not available in this version; available: local, aws, gcp", EXIT_REFUSED
    )


def of_cluster(project: Path, stack: str) -> str | None:
    """The provider of the cluster that a stack has up, whatever is wrong with its file by now.

    None: nothing is known to be up, and the file does not say where there might be something.
    """
    from infra.config import stack_file
    from infra.local.provider import LocalProvider
    from infra.runner import embedded

    if LocalProvider().leftovers(project, stack, dict) or embedded.remembers(project, stack):
        return "local"
    from infra.clouds import places

    said = stack_file.provider(project / f"Pulumi.{stack}.yaml")
    if said in ("aws", "gcp"):
        return said
    # Only Google Cloud has projects.
    noted = places.read(project, stack)
    return ("gcp" if noted[-1].project else "aws") if noted else None
