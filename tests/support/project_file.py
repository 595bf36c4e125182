"""A project's Pulumi.yaml for tests, wherever the checkout and its environment lie."""

from __future__ import annotations

import sys
from typing import Any

import yaml


def runtime(environment: str = sys.prefix) -> dict[str, Any]:
    """Return the `runtime` of a Python project that runs in this environment."""
    return {"name": "python", "options": {"toolchain": "uv", "virtualenv": environment}}


def project_file(name: str, environment: str = sys.prefix) -> str:
    """Return the text of a Pulumi.yaml. A YAML writer makes it: paths may have quotes and brackets."""
    return yaml.safe_dump(
        {"name": name, "runtime": runtime(environment)}, sort_keys=False, allow_unicode=True
    )
