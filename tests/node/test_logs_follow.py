"""Tests of following logs: new lines, whole lines, rotation, boot reports, and the reader's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from node.logs import show, sources
from node.logs.sources import BootReport, LogFile, Note
from tests.support.checkout import ROOT, until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_new_lines_are_shown_once(log: Path) -> None:
    source = LogFile("a", log, "")
    assert source.last(1) == ["two"]
    assert source.more() == []
    append(log, "three\nfour\n")
    assert source.more() == ["three", "four"]
    assert source.more() == []


def test_a_line_waits_for_its_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LogFile("a", log, "")
    source.last(9)
    append(log, "thr")
    assert source.more() == []
    append(log, "ee\nfour")
    assert source.more() == ["three"]
    monkeypatch.setattr(sources, "HOLD_SECONDS", -1.0)
    assert source.more() == ["four"], "it is not held back for ever"
    append(log, " and a half\n")
    assert source.more() == [" and a half"]


def test_a_log_that_is_rotated(log: Path) -> None:
    source = LogFile("a", log, "")
    source.last(9)
    append(log, "last words\n")
    log.rename(log.with_suffix(".1"))
    log.write_text("first words\n")
    assert source.more() == ["last words", "first words"]
    append(log, "and more\n")
    assert source.more() == ["and more"]


def test_a_log_that_is_cut_and_written_anew(log: Path) -> None:
    source = LogFile("a", log, "")
    source.last(9)
    os.truncate(log, 0)
    append(log, "anew\n")
    assert source.more() == ["anew"]


def test_a_log_that_vanishes_and_one_that_comes_late(tmp_path: Path) -> None:
    path = tmp_path / "late.log"
    source = LogFile("a", path, "nobody started it")
    assert source.last(9) == ["(not there: nobody started it)"]
    assert source.heading == f"a: {path}"
    assert source.more() == []
    path.write_text("at last\n")
    assert source.more() == ["at last"]
    assert source.heading.startswith(f"a: {path} (8 bytes, ")
    path.unlink()
    assert source.more() == []
    path.write_text("again\n")
    assert source.more() == ["again"]


def test_lines_of_one_kind(log: Path) -> None:
    source = LogFile("a", log, "", lambda line: "o" in line)
    assert source.last(9) == ["one", "two"]
    append(log, "three\nfour\n")
    assert source.more() == ["four"]
    assert LogFile("a", log, "", lambda _: False).last(9) == ["(nothing about it)"]


def test_what_is_not_worth_a_heading(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert LogFile("a", tmp_path / "empty", "x").last(9) == ["(empty)"]
    assert LogFile("a", tmp_path / "empty", None).last(9) == []
    assert LogFile("a", tmp_path / "no-such", None).last(9) == []
    os.mkfifo(tmp_path / "pipe")
    assert LogFile("a", tmp_path / "pipe", None).last(9)[0].startswith("(cannot be shown: ")


REPORT: dict[str, Any] = {
    "host": "debug-1", "role": "compute", "state": "booting", "started": 1000.0, "ended": None,
    "steps": [
        {"name": "users", "state": "done", "started": 1000.0, "seconds": 0.25, "note": "Slurm runs as me"},
        {"name": "hooks", "state": "running", "started": 1000.0, "seconds": None},
    ],
}  # fmt: skip


def test_a_boot_report_is_a_line_a_step(tmp_path: Path) -> None:
    file = tmp_path / "boot.json"
    source = BootReport(file, "it never booted")
    assert source.last(1) == ["(not there: it never booted)"]
    file.write_text(json.dumps(REPORT))
    assert source.more() == [
        "debug-1 (compute): booting, begun 1970-01-01T00:16:40Z",
        "  users        done        0.2 s  Slurm runs as me",
        "  hooks        running",
    ]
    assert source.more() == []
    failed = {
        "name": "hooks",
        "state": "failed",
        "seconds": 2.0,
        "note": "no driver\x1b",
        "tail": ["line \x07"],
    }
    file.write_text(
        json.dumps({**REPORT, "state": "failed", "ended": 1003.0, "steps": [REPORT["steps"][0], failed]})
    )
    assert source.more() == [
        "debug-1 (compute): failed after 3.0 s, begun 1970-01-01T00:16:40Z",
        r"  hooks        failed      2.0 s  no driver\x1b",
        r"    line \x07",
    ]
    for text in ("{", "[]", '{"host": 1}'):
        file.write_text(text)
        assert source.last(1)[0].startswith("(cannot be shown: ")


def test_headings_part_the_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = LogFile("quiet", tmp_path / "no-such", None)
    show.show([Note("first", ["a\x1b", "b"]), quiet, Note("second", ["c"])], 5, sys.stdout)
    assert capsys.readouterr().out == "==> first <==\na\\x1b\nb\n\n==> second <==\nc\n"


FOLLOW = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from node.logs import show
from node.logs.sources import LogFile

class Cluster:
    def sources(self, what):
        return [LogFile(p.name, p, "") for p in map(Path, {paths!r})]

sys.exit(show.run(Cluster(), "x", lines=5, follow=True))
"""


class Follower:
    """Runs `logs --follow` for some files in a process."""

    def __init__(self, *paths: Path) -> None:
        code = FOLLOW.format(root=str(ROOT), paths=[str(path) for path in paths])
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def sees(self, line: str) -> None:
        until(lambda: line in self.lines, 60, f"{line!r} among {self.lines}", 0.02)

    def ended(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        status = self.process.wait(60)
        return status, self.process.stderr.read()


def test_ctrl_c_ends_it_without_a_word(tmp_path: Path, log: Path) -> None:
    other = tmp_path / "b.log"
    other.write_text("other\n")
    follower = Follower(log, other)
    try:
        follower.sees("other")
        append(other, "goes on without a heading\n")
        follower.sees("goes on without a heading")
        append(log, "another one speaks\n")
        follower.sees("another one speaks")
        heading = [i for i, line in enumerate(follower.lines) if line.startswith("==> a.log: ")]
        assert len(heading) == 2, "at the start, and where it speaks again"
        assert follower.lines[heading[1] + 1] == "another one speaks"
        follower.process.send_signal(signal.SIGINT)
        assert follower.ended() == (130, "")
    finally:
        follower.process.kill()
        follower.process.wait()


def test_it_ends_with_its_reader_even_if_nothing_comes(log: Path) -> None:
    code = FOLLOW.format(root=str(ROOT), paths=[str(log)])
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().startswith(b"==> a.log")
        child.stdout.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""
    finally:
        child.kill()
        child.wait()
        if child.stderr is not None:
            child.stderr.close()
