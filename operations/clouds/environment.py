"""The settings that the engine's provider has, as far as this process can know them."""

from __future__ import annotations

import os
from typing import Any

from infra.config import provider_settings
from infra.config.provider_settings import ENVIRONMENT, ENVIRONMENT_VARIABLE
from infra.errors import EXIT_REFUSED, UserError


def known(text: str | None) -> dict[str, Any]:
    """Return the provider's settings.

    Args:
        text: The settings as in `ClusterRef`.

    Raises:
        UserError: Exit 3; a Pulumi ESC environment may give the engine other settings and credentials.
    """
    settings = provider_settings.settings(text)
    names = ",".join(settings.pop(ENVIRONMENT, []))
    if names and os.environ.get(ENVIRONMENT_VARIABLE) != names:
        raise UserError(
            f"the stack file's environment: {names} may give Pulumi's engine other credentials and another "
            "account, and only the engine reads it, so no cloud is asked. Write what it has under "
            "pulumiConfig for the cloud's provider into the stack file, and run the command with its "
            f"variables: `{ENVIRONMENT_VARIABLE}={names} pulumi env run {names.partition(',')[0]} -- "
            "./cluster …`; or use `pulumi up` and `pulumi destroy` alone",
            EXIT_REFUSED,
            code="cloud.environment-unknown",
        )
    return settings
