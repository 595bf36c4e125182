"""Lists the Python environments in the folder of shared software."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node.bootstrap.vm.training import COMPLETE


def found(apps: Path) -> list[dict[str, Any]]:
    """Returns the environments in `<apps>/envs`, by name.

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
            "python": _python(path / "pyvenv.cfg"),
        }
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]


def _python(config: Path) -> str | None:
    """The version that an environment's configuration names: uv and venv write it under different names."""
    try:
        lines = config.read_text().splitlines()
    except OSError:
        return None
    values = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    return values.get("version_info") or values.get("version")
