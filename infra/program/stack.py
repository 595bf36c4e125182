"""The value that says which stack of which checkout a command is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.program import project_file

NO_ORGANIZATION = "organization"
"""What stands for the organization in full names of stacks in backends that have none, such as a bucket's."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack of one checkout.

    Attributes:
        project: The checkout's folder, which has `Pulumi.yaml`.
        name: The stack's short name, as in `Pulumi.<name>.yaml`. It names files, folders, locks and runs.
        organization: The organization of the stack in Pulumi's backend; `None` means the user's default one.
    """

    project: Path
    name: str
    organization: str | None = None

    @property
    def file(self) -> Path:
        """The stack file."""
        return project_file.stack_folder(self.project) / f"Pulumi.{self.name}.yaml"

    @property
    def named_organization(self) -> str | None:
        """The organization; `None` also for the word that stands for it where a backend has none."""
        return None if self.organization == NO_ORGANIZATION else self.organization

    @property
    def engine_name(self) -> str:
        """The name by which the engine knows the stack: the full one if its organization is known."""
        if self.organization is None:
            return self.name
        return f"{self.organization}/{project_file.name_of(self.project)}/{self.name}"
