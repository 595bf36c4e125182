"""A project's Pulumi.yaml for tests, wherever the checkout and its environment lie."""

from __future__ import annotations

import sys
from typing import Any

import yaml


def runtime(environment: str = sys.prefix) -> dict[str, Any]:
    """The `runtime` of a project in Python that runs in this environment."""
    return {"name": "python", "options": {"toolchain": "uv", "virtualenv": environment}}


def project_file(name: str, environment: str = sys.prefix) -> str:
    """The text of a Pulumi.yaml, by a YAML writer: a path may hold quotes, colons and brackets."""
    return yaml.safe_dump(
        {"name": name, "runtime": runtime(environment)}, sort_keys=False, allow_unicode=True
    )
