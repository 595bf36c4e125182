"""The configuration as the engine hands it to a running program."""

from __future__ import annotations

from typing import Any


def values() -> dict[str, Any]:
    """All keys of the stack, with their namespaces.

    `pulumi.Config` answers for keys that one asks about; a key that is misspelt can only be found by looking
    at all of them.
    """
    from pulumi.runtime import config

    return {**config.get_config_env(), **config.CONFIG.get()}
