"""How commands reach a cluster that is up: its stack, its files, and a process on its login machine."""

from __future__ import annotations

import functools
import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import os_errors
from infra.program import folders, locations
from infra.program.stack import Stack

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.outputs.contract import ClusterOutput
    from node.design.model import ClusterDesign

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
class Published:
    """A cluster of anybody's program, by its outputs.

    Attributes:
        option: The value of `--outputs` that names it.
        cluster: The output, whose values have been checked (`cli.outputs`).
    """

    option: str
    cluster: ClusterOutput


@dataclass(frozen=True)
class StackUp:
    """What a command needs to know of a stack whose cluster is up.

    Attributes:
        stack: The stack; for a published cluster the checkout, with the cluster's name.
        provider: local | aws | gcp
        config: The stack file; `None` where it has mistakes, and for a published cluster.
        published: What is known of a cluster that has no stack file here.
    """

    stack: Stack
    provider: str
    config: StackConfig | None = None
    published: Published | None = None

    @classmethod
    def of(cls, stack: Stack, config: StackConfig) -> StackUp:
        """Return a stack whose file has no mistakes."""
        return cls(stack, config.provider, config)

    @property
    def scheduler(self) -> str:
        """Slurm | batch, as the stack file says; `slurm` where that has mistakes."""
        return "slurm" if self.config is None else self.config.cluster.scheduler

    @functools.cached_property
    def design(self) -> ClusterDesign:
        """The design of the stack file, which is made once.

        Raises:
            UserError: The file has mistakes.
        """
        from infra.config import load_file
        from infra.design import design
        from infra.instance_types.catalog import catalog

        config = self.config or load_file(self.stack.file, self.stack.project)
        return design(config, catalog())

    @property
    def named(self) -> str:
        """What it is called in messages."""
        return f"{'stack' if self.published is None else 'cluster'} {self.stack.name}"

    def command(self, name: str, rest: str = "") -> str:
        """Return a command line of `./cluster` that acts on it.

        Args:
            name: The command, such as `exec`.
            rest: The words after the options, such as `-- squeue`.
        """
        named = f"--stack {self.stack.name}"
        if self.published is not None:
            named = f"--outputs {shlex.quote(self.published.option)}"
        return " ".join(["./cluster", name, named, *([rest] if rest else [])])

    def up_again(self, purpose: str) -> str:
        """Return the sentence that says how it is brought up to date.

        Args:
            purpose: What that does, such as `brings it up to date`.
        """
        if self.published is None:
            return f"`{self.command('up')}` {purpose}"
        return f"`pulumi up` in the program that has it {purpose}"

    def make_folder(self) -> Path:
        """Make the folder for what commands keep of it on this machine, such as its host keys.

        Raises:
            UserError: It cannot be made, or belongs to another user.
        """
        if self.published is None:
            return folders.make_state_dir(self.stack)
        cluster = self.published.cluster
        which = "\0".join(
            map(str, (cluster.provider, cluster.project, cluster.region, cluster.name, cluster.id))
        )
        folder = locations.state_root() / "published" / hashlib.sha256(which.encode()).hexdigest()[:16]
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise os_errors.explain(error, folder) from error
        return folder


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start on the engineer's machine that acts on the cluster's login machine."""

    argv: list[str]
    env: dict[str, str]
    """The variables that are added to the caller's environment."""
