"""The project and the configuration of one stack, read from the checkout as the Pulumi CLI reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from infra.config import stack_file
from infra.config.stack_file import Loader
from infra.errors import EXIT_USAGE, UserError
from infra.program import project_file
from infra.program.stack import Stack

REDACTED = "[secret]"


@dataclass(frozen=True, slots=True)
class Project:
    """The content of `Pulumi.yaml` and `Pulumi.<stack>.yaml`.

    Attributes:
        config: Full key (`namespace:name`) -> string; objects are JSON text, as Pulumi passes them to a
            program.
        secure: Keys with encrypted values in the stack file; `config` has `[secret]` for them.
    """

    name: str
    directory: Path
    stack: str
    config: dict[str, str]
    secure: frozenset[str] = field(default_factory=frozenset)

    @property
    def program(self) -> Path:
        return self.directory / "__main__.py"


def load(stack: Stack) -> Project:
    """Read the two files.

    Raises:
        UserError: Exit 2; a file is missing or wrong.
    """
    directory = stack.project.resolve()
    settings = _read(directory / project_file.NAME, f"{directory} is not a Pulumi project")
    shared = project_file.of(settings, directory)
    name = shared.name
    if name is None:
        raise UserError(
            f"{directory / project_file.NAME}: `name` is missing", EXIT_USAGE, code="project.no-name"
        )
    stacks = stack_file.stacks(directory)
    known = f"stacks here: {', '.join(stacks)}" if stacks else "there are none here"
    own = _read(stack.file, f"there is no stack {stack.name}; {known}").get("config") or {}
    full = {project_file.full_key(str(key), name): value for key, value in own.items()}
    config: dict[str, str] = {}
    secure = set(stack_file.secrets(shared, full))
    for key, value in stack_file.merged(shared, full).items():
        if value is None:
            continue
        readable = _redacted(value)
        config[key] = _text(readable)
        if readable != value:
            secure.add(key)
    return Project(name, directory, stack.name, config, frozenset(secure))


def _read(path: Path, missing: str) -> dict[str, Any]:
    try:
        # This safe loader reads unusual values in the same way as the checks of the stack file.
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except FileNotFoundError:
        raise UserError(f"{path.name}: {missing}", EXIT_USAGE, code="project.missing") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path.name}: not YAML: {error}", EXIT_USAGE, code="project.not-yaml") from None
    except RecursionError:
        raise UserError(
            f"{path.name}: it is nested too deeply to be read", EXIT_USAGE, code="project.too-deep"
        ) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(
            f"{path.name}: a mapping is expected at the top", EXIT_USAGE, code="project.not-a-mapping"
        )
    return value


def _redacted(value: Any) -> Any:
    """Return the value with every `{secure: …}` in it replaced by `[secret]`."""
    if isinstance(value, dict):
        if set(value) == {"secure"}:
            return REDACTED
        return {k: _redacted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_redacted(v) for v in value]
    return value


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return json.dumps(value)
        case _:
            # YAML has dates, JSON does not.
            return json.dumps(value, sort_keys=True, default=str)
