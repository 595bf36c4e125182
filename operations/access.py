"""How commands reach a cluster that is up: its stack, its files, and a process on its login machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.program.stack import Stack

if TYPE_CHECKING:
    from infra.config import StackConfig

TOOL = "slurm-stacks"
"""The name of the cluster's own command on its login machine."""
Outputs = Callable[[], Mapping[str, Any]]
"""Asks the engine, once, for the stack's outputs; empty if the stack is not up or they cannot be read."""


Files = Callable[[str], Path]
"""Maps a path on the login machine, absolute or below the shared home folder, to its path on this machine."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A login machine on this machine that has a root folder of its own.

    Attributes:
        enter: The beginning of a command line that runs there, in the user's home folder.
    """

    enter: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackUp:
    """What a command needs to know of a stack whose cluster is up.

    Attributes:
        provider: local | aws | gcp
        config: The stack file; `None` where it has mistakes.
    """

    stack: Stack
    provider: str
    config: StackConfig | None = None

    @classmethod
    def of(cls, stack: Stack, config: StackConfig) -> StackUp:
        """Return a stack whose file has no mistakes."""
        return cls(stack, config.provider, config)


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start on the engineer's machine that acts on the cluster's login machine."""

    argv: list[str]
    env: dict[str, str]
    """The variables that are added to the caller's environment."""
