"""Files that are replaced in one step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from workload import files


def test_a_file_is_replaced_at_the_end_and_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "note.json"
    for content in (b"first", b"second"):
        before = path.read_bytes() if path.exists() else None
        with files.replacing(path) as draft:
            draft.write(content)
            draft.flush()
            assert Path(draft.name).parent == path.parent, "a library may open it by its path"
            assert Path(draft.name).read_bytes() == content
            assert (path.read_bytes() if path.exists() else None) == before
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["note.json"]


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("old")
    with pytest.raises(ZeroDivisionError), files.replacing(tmp_path / "note") as draft:
        draft.write(bytes(1 // len(b"")))
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("note", "old")]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.json"
    files.write_json(path, {"epoch": 1})

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"epoch": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["progress.json"]
