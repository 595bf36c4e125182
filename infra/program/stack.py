"""The value that says which stack of which checkout a command is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack of one checkout.

    Attributes:
        project: The checkout's folder, which has `Pulumi.yaml`.
        name: The stack's short name, as in `Pulumi.<name>.yaml`.
    """

    project: Path
    name: str

    @property
    def file(self) -> Path:
        """The stack file."""
        return self.project / f"Pulumi.{self.name}.yaml"
