"""The pictures of plans show what `plan` prints. tests/cluster/test_documented_commands.py has the others."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.text import Text

from cli import main as cli
from tests.support.checkout import ROOT

FOLDER = ROOT / "docs" / "pictures"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("record")


@pytest.mark.parametrize("scene", ["aws", "gcp"])
def test_a_picture_of_plans_is_up_to_date(
    scene: str, record: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = []
    monkeypatch.setenv("COLUMNS", str(record.COLUMNS))
    for command in record.SCENES[scene]:
        typed = command.rpartition("; ")[2]
        stack, count = re.findall(r"--stack (\S+) \| head -(\d+)", typed)[0]
        monkeypatch.setattr(sys, "argv", ["cluster", "plan", "--stack", stack])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None)
        printed = [line for line in capsys.readouterr().out.splitlines()[: int(count)] if line.strip()]
        wanted += [f"$ {typed}", *printed]
    picture = record.drawn((FOLDER / f"{scene}.svg").read_text(encoding="utf-8"))
    assert [squeezed(line) for line in picture] == [squeezed(line) for line in wanted], (
        f"run python docs/pictures/record.py {scene}"
    )


def test_each_picture_has_a_scene_that_is_run(record: ModuleType) -> None:
    """The two kinds are run by the test above, and by tests/cluster/test_documented_commands.py."""
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(record.SCENES) == {"up", "use", "aws", "gcp"}


def squeezed(line: str) -> str:
    return "".join(line.split())


def test_a_stale_line_would_be_found(record: ModuleType, tmp_path: Path) -> None:
    shown = ["time   12.5 s", "cores  2", "kept as ~/a/b.json", "+ local-head created (0.3 s)"]
    assert record.labels(shown) == {"time", "kept as PATH", "+ local-head created (N s)"}
    picture = record.draw(record.shown(["printf 'one\\n  two  3\\n'"], tmp_path), "a title")
    assert record.drawn(picture)[1:] == ["one", "  two  3"]


@pytest.mark.parametrize("stopped", ["a machine that is not quiet", "a command that fails", "nothing"])
def test_no_cluster_of_a_recording_stays_up(
    stopped: str, record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended: list[list[str]] = []

    def shown(commands: list[str]) -> Text:
        if stopped == "a command that fails":
            raise RuntimeError(f"{commands[0]} ended with status 1")
        return Text("cluster up" if stopped == "nothing" else "local has nodes on core 0")

    monkeypatch.setattr(record, "shown", shown)
    monkeypatch.setattr(record, "HERE", tmp_path)
    monkeypatch.setattr(
        record.subprocess, "run", lambda command, **_options: ended.append([str(word) for word in command])
    )
    monkeypatch.setattr(sys, "argv", ["record.py", "up"])
    with contextlib.suppress(SystemExit, RuntimeError):
        record.main()
    assert ended == [[str(ROOT / "cluster"), "down", "--stack", "local", "--yes"]]
    assert (tmp_path / "up.svg").exists() == (stopped == "nothing")
    monkeypatch.setattr(sys, "argv", ["record.py", "aws"])
    with contextlib.suppress(SystemExit, RuntimeError):
        record.main()
    assert len(ended) == 1, "plans bring nothing up"
