"""The project files that the engine's tests write are valid for any path of the checkout."""

from __future__ import annotations

import pytest
import yaml

from tests.support.project_file import project_file

FOLDERS = ["/home/o'brien/my checkout", "/a: b/{c}", '/"quoted"', "/#1", "/é, [x]", "/%~"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_any_path_of_the_environment_comes_back(folder: str) -> None:
    content = yaml.safe_load(project_file("tiny", folder))
    assert content["name"] == "tiny"
    assert content["runtime"] == {"name": "python", "options": {"toolchain": "uv", "virtualenv": folder}}
