"""The configuration that the Pulumi engine gives to a running program."""

from __future__ import annotations

from typing import Any


def values() -> dict[str, Any]:
    """All keys of the stack with their namespaces, and their values.

    `pulumi.Config` gives only the values of known keys, so a misspelt key would not be found.
    """
    from pulumi.runtime import config

    return {**config.get_config_env(), **config.CONFIG.get()}
