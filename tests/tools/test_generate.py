"""What is made from the code is as the code is now, and one command makes it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import generate


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    assert list(generate.outdated()) == [], "run python -m tools.generate"


MADE = {
    "infra/schema/stack.json": "Stack file of slurm-stacks",
    "infra/schema/outputs.json": "A machine that other programs may connect to.",
    "component/schema.json": '"slurm-stacks:index:SlurmCluster"',
    "docs/reference/changes.md": "| `tags` |",
    "docs/reference/outputs.md": "| `provider` |",
    "docs/reference/words.md": "| `cluster_name` |",
}
"""File -> a text in it that is made."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, up to date."""
    for name in generate.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(generate.ROOT / name, tmp_path / name)
    for name, text in generate.outdated().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    outdated = generate.outdated
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "outdated", lambda: outdated(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", generate.FILES)
def test_a_file_that_is_not_up_to_date_is_named_and_written(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    whole = (copy / name).read_text(encoding="utf-8")
    assert whole.count(MADE[name]) == 1
    damage = "| ? |" if MADE[name].startswith("|") else "?"
    (copy / name).write_text(whole.replace(MADE[name], damage), encoding="utf-8")
    assert (generate.main(["--check"]), started) == (1, [])
    assert capsys.readouterr().out == f"not up to date: {name}\n"
    assert generate.main([]) == 0
    assert capsys.readouterr().out == f"written: {name}\n"
    assert (copy / name).read_text(encoding="utf-8") == whole
    assert generate.main(["--check"]) == 0
    (command,) = started
    assert set(generate.SNAPSHOTS) <= set(command)
    assert all((Path(__file__).parents[2] / test).exists() for test in generate.SNAPSHOTS)
