"""A full disk is named by the file that had no space there, whatever was being written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import os_errors
from infra.program.files import named, write_atomically
from node.system import files


def on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that is opened by its descriptor be written to a full disk."""
    fdopen = os.fdopen

    def full(handle: int, *how: Any, **more: Any) -> Any:
        os.dup2(os.open("/dev/full", os.O_WRONLY), handle)
        return fdopen(handle, *how, **more)

    monkeypatch.setattr(os, "fdopen", full)


WRITERS: dict[str, Callable[[Path], object]] = {
    "a file of the program": lambda path: write_atomically(path, "x" * 100_000),
    "a small one": lambda path: write_atomically(path, "x", exclusive=True),
    "one that lasts": lambda path: write_atomically(path, "x", durable=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "results" / "one.json"
    path.parent.mkdir()
    with monkeypatch.context() as patch:
        on_a_full_disk(patch)
        with pytest.raises(OSError, match="No space left") as error:
            WRITERS[name](path)
    told = os_errors.explain(error.value)
    assert told.code == "system.no-space"
    assert str(told).startswith(f"no space left for {path}: ")
    assert list(path.parent.iterdir()) == [], "no draft is left"


def test_a_machines_file_is_named_as_well(tmp_path: Path) -> None:
    path = tmp_path / "boot.json"

    def write() -> None:
        with files.replacing(path) as stream:
            os.dup2(os.open("/dev/full", os.O_WRONLY), stream.fileno())
            stream.write(b"x")

    with pytest.raises(OSError, match="No space left") as error:
        write()
    assert error.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_names_its_file_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error, named(tmp_path / "other"):
        (tmp_path / "none").read_text()
    assert error.value.filename == str(tmp_path / "none")
