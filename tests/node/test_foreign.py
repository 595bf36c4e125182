"""Tests of what is read where others can write: links, pipes, endless texts, nested JSON, owners."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.system import foreign
from workload import files

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def nested(levels: int, kind: str = "[]") -> str:
    opening, closing = ("[", "]") if kind == "[]" else ('{"a":', "}")
    return f"{opening * levels}1{closing * levels}"


@pytest.mark.parametrize("parse", [foreign.parse, files.parse_json])
@pytest.mark.parametrize("kind", ["[]", "{}"])
@pytest.mark.parametrize("levels", [20, 500, 100_000])
def test_json_that_is_nested_too_deeply_is_a_mistake_and_no_crash(parse, kind, levels) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="nested deeper than 20 levels"):
        parse(nested(levels, kind))
    assert parse(nested(19, kind)) is not None
    with pytest.raises(ValueError, match="Exceeds the limit"):
        parse("9" * 10_000)


@given(value=JSON)
def test_ordinary_json_is_read_as_json_does(value: object) -> None:
    text = json.dumps(value)
    expected = json.dumps(json.loads(text))
    for parse in (foreign.parse, files.parse_json):
        with contextlib.suppress(ValueError):  # it is nested too deeply
            assert json.dumps(parse(text)) == expected


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert foreign.read(file, 10) == (b"x" * 10, os.geteuid())
    assert foreign.end(file, 4) == b"xxxx"
    with pytest.raises(foreign.UnusableError, match="larger than 9 bytes"):
        foreign.read(file, 9)
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(foreign.UnusableError):
            foreign.read(tmp_path / name, 100)
    with pytest.raises(FileNotFoundError):
        foreign.read(tmp_path / "nothing", 100)
    (tmp_path / "way").symlink_to(tmp_path / "folder")
    with pytest.raises(foreign.UnusableError), foreign.folder(tmp_path / "way"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_the_owner_is_that_of_the_open_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.chown(file, 4711, 4711)
    assert foreign.read(file, 1).owner == foreign.owner(file) == 4711
    assert not foreign.is_trusted(4711)
    assert foreign.is_trusted(0)
    assert foreign.is_trusted(None)
    assert foreign.name(4711) == "user 4711"


def test_a_log_is_written_through_no_link(tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "log"
    victim.write_text("mine")
    for text, anew in (("a", False), ("b", False), ("c", True)):
        with foreign.log(log, anew=anew) as output:
            output.write(text.encode())
    assert log.read_text() == "c"
    log.unlink()
    log.symlink_to(victim)
    for anew in (True, False):
        with pytest.raises(OSError, match="symbolic links"):
            foreign.log(log, anew=anew)
    assert victim.read_text() == "mine"
