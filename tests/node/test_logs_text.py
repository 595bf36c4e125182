"""Tests of reading the end of a log: whole lines, and no control characters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from node.logs import text
from node.logs.text import UnreadableError, age, decoded, open_log, printable, size, tail


@contextmanager
def opened(path: Path, content: bytes) -> Iterator[int]:
    path.write_bytes(content)
    descriptor = open_log(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lines_of(path: Path, content: bytes, count: int, wanted: text.Wanted | None = None) -> list[str]:
    with opened(path, content) as descriptor:
        found, position = tail(descriptor, count, wanted)
        assert position == len(content)
        return found


@pytest.mark.parametrize(
    ("content", "count", "expected"),
    [
        (b"", 3, []),
        (b"\n", 3, [""]),
        (b"a", 3, ["a"]),
        (b"a\nb\n", 3, ["a", "b"]),
        (b"a\nb\nc\nd", 2, ["c", "d"]),
        (b"\n\na\n\n", 9, ["", "", "a", ""]),
    ],
)
def test_the_last_lines(tmp_path: Path, content: bytes, count: int, expected: list[str]) -> None:
    assert lines_of(tmp_path / "log", content, count) == expected


@settings(deadline=None)
@given(
    lines=some.lists(some.text(alphabet="ab", max_size=9), max_size=30),
    whole=some.booleans(),
    count=some.integers(1, 40),
)
def test_blocks_leave_no_seams(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], whole: bool, count: int
) -> None:
    content = "\n".join(lines).encode() + (b"\n" if whole and lines else b"")
    expected = content.decode().removesuffix("\n").split("\n") if content else []
    file = tmp_path_factory.mktemp("log") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", 7)
        assert lines_of(file, content, count) == expected[-count:]
        only = [line for line in expected if "a" in line]
        assert lines_of(file, content, count, lambda line: "a" in line) == only[-count:]


def test_a_large_log_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    real = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        nonlocal read
        read += length
        return real(descriptor, length, offset)

    content = b"".join(b"line %d\n" % n for n in range(200_000))
    with opened(tmp_path / "log", content) as descriptor:
        monkeypatch.setattr(os, "pread", counted)
        found, _ = tail(descriptor, 3)
    assert found == ["line 199997", "line 199998", "line 199999"]
    assert read < 2 * text.CHUNK


def test_the_search_for_lines_ends_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "SCAN_BYTES", 100)
    monkeypatch.setattr(text, "TAIL_BYTES", 10)
    content = b"wanted\n" + b"other\n" * 100
    assert lines_of(tmp_path / "log", content, 1, lambda line: line == "wanted") == []
    assert lines_of(tmp_path / "log", b"x" * 50, 5) == ["x" * 10], "one line without an end"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        with pytest.raises(UnreadableError):
            open_log(path)
    with pytest.raises(FileNotFoundError):
        open_log(tmp_path / "no-such")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain \xc3\xbcber \xe2\x9c\x93", "plain über ✓"),
        (b"tab\there", "tab\there"),
        (b"dos line\r", "dos line"),
        (b"\x1b[31mred\x1b[0m text", "red text"),
        (b"10%\r50%\r100%", "100%"),
        (b"\x1b]0;title\x07 \x1b[2J", r"\x1b]0;title\x07 \x1b[2J"),
        (b"nul \x00 bell \x07 del \x7f", r"nul \x00 bell \x07 del \x7f"),
        (b"\xff\xfe bytes", r"\xff\xfe bytes"),
        ("turn \u202e and \u2028 end".encode(), r"turn \u202e and \u2028 end"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(raw: bytes, shown: str) -> None:
    assert decoded(raw) == shown
    assert printable(shown.replace("\t", "")).isprintable()


@settings(deadline=None)
@given(some.binary(max_size=60))
def test_whatever_a_log_holds_can_be_printed(raw: bytes) -> None:
    assert decoded(raw).replace("\t", "").isprintable()


def test_a_line_without_end_is_cut() -> None:
    shown = decoded(b"x" * (text.LONGEST_LINE + 5))
    assert shown == "x" * text.LONGEST_LINE + " … (5 more characters)"
    assert decoded(b"x" * text.LONGEST_LINE) == "x" * text.LONGEST_LINE


def test_ages_and_sizes_in_words() -> None:
    seconds = (0, -50, 1, 119, 121, 7200, 2 * 86400)
    assert [age(1000.0 - s, 1000.0) for s in seconds] == [
        "just now", "just now", "1 s ago", "119 s ago", "2 min ago", "2 h ago", "2 days ago",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "5 MiB",
        "3 GiB",
    ]
