"""The workload's archive: the same files are the same bytes."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from infra import bundle
from infra.ssh import archive
from tests.support.checkout import ROOT


def files(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_it_holds_the_workload_and_nothing_that_python_leaves_there() -> None:
    assert files(archive.workload(ROOT)) == {
        f"workload/{name}": content for name, content in bundle.tree(ROOT / "workload")
    }


def test_time_owner_and_byte_code_are_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "workload"
    (folder / "envs").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    (folder / "envs" / "b").write_text("2")
    content = archive.workload(tmp_path)
    os.utime(folder / "a.py", (1, 1))
    (folder / "a.py").chmod(0o600)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert archive.workload(tmp_path) == content
    (folder / "envs" / "b").write_text("3")
    assert archive.digest(archive.workload(tmp_path)) != archive.digest(content)


def test_it_is_kept_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not archive.place(b"one").exists()
    path = archive.keep(b"one")
    assert path == archive.place(b"one")
    assert path.read_bytes() == b"one"
    assert archive.keep(b"two") != path
    path.write_bytes(b"on")  # a disk that was full
    assert archive.keep(b"one").read_bytes() == b"one"
    assert len(list(path.parent.iterdir())) == 2
