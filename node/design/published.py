"""The published settings as text, in the one form that this version reads and writes."""

from __future__ import annotations

import json
from pathlib import Path

from node.design.model import SETTINGS_VERSION, Settings
from node.system import foreign
from node.system.codec import from_json


def read_settings(file: Path) -> Settings:
    """Read the settings in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no settings of this version; the message says where.
    """
    return parse_settings(file.read_text())


def parse_settings(text: str | bytes) -> Settings:
    """Read the settings in a text.

    Raises:
        ValueError: It holds no settings of this version; the message says where.
    """
    content = foreign.parse_strictly(text)
    version = content.get("api_version") if isinstance(content, dict) else None
    if version != SETTINGS_VERSION:
        raise ValueError(
            f"settings of {json.dumps(version)}, and this code reads {json.dumps(SETTINGS_VERSION)}: use the "
            "release that has published them, or a newer one"
        )
    return from_json(Settings, content)
