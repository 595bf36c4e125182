"""The `slurm-stacks` command of a login machine that is not the controller."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from node import command_line
from node.bootstrap.vm.users import KEY
from node.system.codec import to_json
from tests.support.doubles import settings


class Became(Exception):  # noqa: N818  no error: it stands for the program that the process becomes
    """The process is another program from here on."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(to_json(settings(tmp_path))))
    return path


@pytest.mark.parametrize("verb", command_line.CONTROLLERS)
def test_what_the_controller_knows_is_asked_there(
    file: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(_program: str, words: list[str]) -> None:
        raise Became(words)

    monkeypatch.setattr(os, "execvp", become)
    arguments = [verb, *(["a b;c"] if verb == "logs" else [])]
    with pytest.raises(Became) as became:
        command_line.main(str(file), arguments, here=False)
    words = became.value.args[0]
    assert words[-2:] == [
        settings(file.parent).site.controller_address,
        shlex.join(["slurm-stacks", *arguments]),
    ]
    assert f"-oIdentityFile=~/.ssh/{KEY}" in words
    assert words.index("--") == len(words) - 3
