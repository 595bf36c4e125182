"""Pulumi.yaml: the project's name, where its stack files lie, and the values that it gives to every stack.

The engine merges these values into a stack's configuration. Everything here that reads a stack file does the
same, through this module and `infra.config.stack_file`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "Pulumi.yaml"


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """What is used of a project's Pulumi.yaml.

    Attributes:
        name: The project's name; `None` if the file does not say.
        stack_folder: The folder of the stack files: the project's, or its `stackConfigDir`.
        values: Full key (`namespace:name`) -> the value that a stack without this key gets.
        secret: The keys that the file declares to be secret.
    """

    name: str | None
    stack_folder: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()


def of(content: Any, project: Path) -> ProjectFile:
    """Return what is used of a project's file.

    Args:
        content: The file's values; anything but keys and values counts as an empty file.
        project: The project's folder.
    """
    settings = content if isinstance(content, Mapping) else {}
    name = settings.get("name")
    name = name if isinstance(name, str) else None
    declared = settings.get("config")
    # In older projects `config` itself was the folder of the stack files.
    folder = declared if isinstance(declared, str) else settings.get("stackConfigDir")
    values: dict[str, Any] = {}
    secret = set()
    for key, entry in declared.items() if isinstance(declared, Mapping) else ():
        full = full_key(str(key), name or "")
        value = entry
        if isinstance(entry, Mapping):
            value = entry.get("value", entry.get("default"))
            if entry.get("secret") is True:
                secret.add(full)
        if value is not None:
            values[full] = value
    where = project / folder if isinstance(folder, str) and folder else project
    return ProjectFile(name, where, values, frozenset(secret))


def stack_folder(project: Path) -> Path:
    """Return the folder of a project's stack files, also if its Pulumi.yaml is missing or cannot be read."""
    return of(_content(project), project).stack_folder


def name_of(project: Path) -> str:
    """Return a project's name; `slurm-stacks` if its Pulumi.yaml does not say."""
    return of(_content(project), project).name or "slurm-stacks"


def project_of(stack_file: Path) -> Path:
    """Return the project of a stack file: the nearest folder above with a Pulumi.yaml, else its own.

    Whoever has the `Stack` knows better: with `stackConfigDir` a stack file may lie anywhere.
    """
    folder = stack_file.parent
    above = [folder, *folder.resolve().parents]
    for project in above:
        if (project / NAME).is_file():
            owns = stack_folder(project).resolve() == folder.resolve()
            return project if owns else folder
    return folder


def full_key(key: str, project: str) -> str:
    """Return a key with its namespace, which is the project's if it has none."""
    return key if ":" in key else f"{project}:{key}"


def _content(project: Path) -> Any:
    try:
        return _parsed((project / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    """Return the values of a text, which nobody may change; a command asks for the same text many times."""
    # Imported here, because jobs' environments have no YAML, and need a stack's folders only.
    import yaml

    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return None
