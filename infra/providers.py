"""Which providers there are."""

from __future__ import annotations

from infra.errors import EXIT_REFUSED, UserError
from infra.provider import Provider


def load(name: str) -> Provider:
    """The provider of that name.

    Raises:
        UserError: this version does not know it.
    """
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
