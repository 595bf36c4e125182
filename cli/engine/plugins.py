"""Keeps the engine from downloading plugins that a stack does not use.

Before a program runs, the engine fetches a plugin for each Pulumi SDK in the program's environment, which is
one for all stacks: a local stack would download the providers of both clouds, some hundred megabytes.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from infra.errors import UserError
from infra.program import locations

NO_DOWNLOADS = "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"
PROVIDERS = "pulumi:providers:"
"""The beginning of the types of the providers in a state, which are nothing by themselves."""


class Plugin(NamedTuple):
    """A plugin with resources."""

    name: str
    version: str

    @property
    def installed(self) -> bool:
        """Whether it is in the CLI's folder. One on PATH does not count: its version is not known."""
        return (locations.pulumi_home() / "plugins" / f"resource-{self.name}-v{self.version}").is_dir()


def of_program(packages: Sequence[str]) -> list[Plugin]:
    """Return the plugins for some packages, in the versions of their SDKs here."""
    return [Plugin(name, importlib.metadata.version(f"pulumi-{name}")) for name in packages]


def of_state(resources: Sequence[Mapping[str, Any]]) -> list[Plugin]:
    """Return the plugins that have made the resources of a state, in the versions of that time."""
    return [
        Plugin(kind.removeprefix(PROVIDERS), str(version))
        for each in resources
        if (kind := str(each.get("type"))).startswith(PROVIDERS)
        and (version := (each.get("inputs") or {}).get("version"))
    ]


def all_there(
    packages: Sequence[str], resources: Sequence[Mapping[str, Any]], install: Callable[[Plugin], None]
) -> bool:
    """Return whether all plugins of a stack are installed, so that the engine need not fetch any.

    Args:
        packages: What the program uses.
        resources: The resources of the state.
        install: Installs a plugin of the program that is missing; a UserError says that it cannot.
    """
    try:
        for plugin in of_program(packages):
            if not plugin.installed:
                install(plugin)
    except UserError:
        return False  # The engine tries again, and its message is the better one.
    return all(plugin.installed for plugin in (*of_program(packages), *of_state(resources)))
