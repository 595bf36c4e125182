"""Files that are replaced in one step."""

from __future__ import annotations

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
