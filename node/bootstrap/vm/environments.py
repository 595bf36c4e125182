"""Lists the Python environments in the folder of shared software."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node.bootstrap.vm.training import COMPLETE


def environments(apps: Path) -> list[dict[str, Any]]:
    """Return the environments in `<apps>/envs`, by name.

    Returns:
        For each the `name`, the `path`, whether it is `complete`, and its version of `python`, or null.
    """
    folder = apps / "envs"
    if not folder.is_dir():
        return []
    return [
        {
            "name": path.name,
            "path": str(path),
            "complete": (path / COMPLETE).exists() and (path / "bin" / "python").exists(),
            "python": python_version(pyvenv_values(path / "pyvenv.cfg")),
        }
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]


def pyvenv_values(file: Path) -> dict[str, str]:
    """Return the values of a `pyvenv.cfg`; none if it cannot be read."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def python_version(values: dict[str, str]) -> str | None:
    """Return the version that an environment's configuration names: uv and venv name it differently."""
    return values.get("version_info") or values.get("version")
