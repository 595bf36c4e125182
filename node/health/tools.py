"""Runs the tools that know a device's health. A tool that hangs is a finding, not an error of the check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from node.system.subprocesses import Ran, run

OWN_FOLDERS = ("/opt/aws/neuron/bin",)
"""Folders of tools that are on no usual PATH."""


class Tool(Protocol):
    """A function that runs a tool. Tests use recorded outputs instead."""

    def __call__(self, *argv: str, seconds: float) -> Ran:
        """Run a tool within a time limit.

        Raises:
            FileNotFoundError: It is not installed.
        """
        ...


def runner(environment: Mapping[str, str]) -> Callable[..., Ran]:
    """Return a `Tool` whose tools get this environment and are found by its PATH."""
    return lambda *argv, seconds: run(argv, environment, seconds)
