"""Settings are read in the version that this code knows, and refused in any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.design.model import SETTINGS_VERSION, Settings, Site
from node.design.published import parse_settings, read_settings
from node.system.codec import to_json
from tests.support.doubles import design

SETTINGS = Settings(design(), Site("/", "slurm", "controller", "10.0.0.7"))


def test_what_is_published_is_read(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(to_json(SETTINGS)))
    assert read_settings(file) == SETTINGS


@pytest.mark.parametrize(
    ("content", "given"),
    [
        ({**to_json(SETTINGS), "api_version": "slurm-stacks/settings/v3"}, '"slurm-stacks/settings/v3"'),
        ({"design": {}, "site": {}}, "null"),
        ([], "null"),
    ],
)
def test_another_version_is_refused_by_name(content: Any, given: str) -> None:
    with pytest.raises(ValueError, match=f"settings of {given}, and this code reads .*{SETTINGS_VERSION}"):
        parse_settings(json.dumps(content))


def test_a_field_that_nobody_knows_is_named() -> None:
    content = to_json(SETTINGS)
    content["site"]["driver"] = {}
    with pytest.raises(ValueError, match=r"Settings\.site: unknown fields driver"):
        parse_settings(json.dumps(content))
